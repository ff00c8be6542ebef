"""The tutorial's commands and scripts, run in order as a reader would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import IMPORTS

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(bash|python)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.mark.campaign
def test_every_block_of_the_tutorial_runs(tmp_path):
    folder = tmp_path / "tutorial"
    folder.mkdir()
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (
        ("python", ""),
        ("datapipe", "-m datapipe"),
        ("torchrun", "-m torch.distributed.run"),
    ):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    environment = os.environ | IMPORTS | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    output = ""
    blocks = BLOCK.findall((ROOT / "docs/tutorial.md").read_text("utf-8"))
    for language, title, code in blocks:
        if language == "python":
            (folder / title).write_text(code)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=folder,
            env=environment,
            timeout=300,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}"
        output += done.stdout

    assert "killed" in output
    assert len((folder / "shards/rejects.jsonl").read_text().splitlines()) == 2
    assert "rank 0 of 1, step 5" in output
    assert "rank 1 of 2, step 6" in output
    assert "rank 0 of 1, step 6" not in output
    assert "each seen once" in output
