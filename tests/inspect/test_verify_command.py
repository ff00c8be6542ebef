"""`datapipe verify` and `datapipe repair` as commands: lines, exit codes, an interrupt."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from datapipe.cli.command import app

from .damage import damaged_file


def run(*args):
    return CliRunner().invoke(app, [str(argument) for argument in args])


def test_the_command_names_damage_and_the_next_step(whole, harmed, tmp_path):
    begin = whole.samples[4].spans[0][0]
    damaged_file(harmed, "*1.tar", begin + 100)
    told = run("verify", harmed)
    assert (told.exit_code, told.stderr) == (1, "")
    assert "shard-000001.tar: sample 000000004, 000000004.jpg, bytes 512 to" in told.stdout
    assert f"datapipe repair {harmed} NEW_FOLDER" in told.stdout
    told = run("repair", harmed, tmp_path / "out")
    assert told.exit_code == 1
    assert "pack again (1 input): 004.jpg" in told.stdout
    told = run("verify", tmp_path / "out", "--json")
    assert told.exit_code == 0
    fields = json.loads(told.stdout)
    assert (fields["whole"], fields["samples"], fields["findings"]) == (True, 11, [])
    told = run("repair", tmp_path / "out")
    assert (told.exit_code, told.stdout) == (1, "")
    assert "--in-place" in told.stderr


def test_an_interrupt_ends_quietly(whole):
    program = (
        "import datapipe, sys, signal, os\n"
        "from datapipe.cli import main\n"
        "from datapipe.inspect import verify\n"
        "verify.locate = lambda path: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.argv = ['datapipe', 'verify', {str(whole.folder)!r}]\n"
        "main()\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout) == (130, "")
    assert told.stderr == "\nInterrupted; the dataset is as it was.\n"
