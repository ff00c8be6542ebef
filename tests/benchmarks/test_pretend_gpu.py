"""The pretended GPU, as far as a build of torch for the CPU goes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch


def call(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tools.pretend_gpu", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert not done.stdout
    return done.stderr


def test_without_a_module_it_says_what_it_is() -> None:
    assert "usage: python -m tools.pretend_gpu MODULE" in call()


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")
def test_a_torch_without_cuda_is_refused() -> None:
    assert "is built without CUDA" in call("pytest")
