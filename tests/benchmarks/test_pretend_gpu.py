"""The pretended GPU, as far as a build of torch for the CPU goes."""

import subprocess
import sys
from subprocess import PIPE

import pytest
import torch


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")
def test_without_a_module_or_cuda_it_says_what_is_missing():
    command = [sys.executable, "-m", "tools.pretend_gpu"]
    running = [
        (subprocess.Popen([*command, *more], stdout=PIPE, stderr=PIPE, text=True), said)
        for more, said in (
            ([], "usage: python -m tools.pretend_gpu MODULE"),
            (["pytest"], "is built without CUDA"),
        )
    ]
    for process, said in running:
        out, error = process.communicate()
        assert (process.returncode, out) == (1, "")
        assert said in error
