"""`datapipe verify` and `datapipe repair` as commands: lines, exit codes, an interrupt."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from datapipe.cli.command import app

from .damage import damaged_file, made


@pytest.fixture(scope="module")
def packed(tmp_path_factory, make_folder):
    return made(tmp_path_factory.mktemp("packed"), make_folder, kind="packed")


def run(*args):
    return CliRunner().invoke(app, [str(argument) for argument in args])


def test_the_command_names_damage_and_the_next_step(packed, tmp_path):
    folder = packed.restore(tmp_path / "harmed")
    begin = packed.samples[4].spans[0][0]
    damaged_file(folder, "*1.tar", begin + 100)
    told = run("verify", folder)
    assert (told.exit_code, told.stderr) == (1, "")
    assert "shard-000001.tar: sample 000000004, 000000004.jpg, bytes 512 to" in told.stdout
    assert f"datapipe repair {folder} NEW_FOLDER" in told.stdout
    told = run("repair", folder, tmp_path / "out")
    assert told.exit_code == 1
    assert "pack again (1 input): 004.jpg" in told.stdout
    told = run("verify", tmp_path / "out", "--json")
    assert told.exit_code == 0
    fields = json.loads(told.stdout)
    assert (fields["whole"], fields["samples"], fields["findings"]) == (True, 11, [])
    told = run("repair", tmp_path / "out")
    assert (told.exit_code, told.stdout) == (1, "")
    assert "--in-place" in told.stderr


def test_an_interrupt_ends_quietly(packed, tmp_path):
    program = (
        "import datapipe, sys, signal, os\n"
        "from datapipe.cli import main\n"
        "from datapipe.inspect import verify\n"
        "verify.locate = lambda path: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.argv = ['datapipe', 'verify', {str(packed.folder)!r}]\n"
        "main()\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout) == (130, "")
    assert told.stderr == "\nInterrupted; the dataset is as it was.\n"
