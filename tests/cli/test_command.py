"""The `datapipe` command: what it prints, where, and how it ends."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import datapipe
from datapipe.cli.output import Commands

KEYS = [
    *("samples", "images", "videos", "frames", "rejected", "lost", "shards", "bytes"),
    *("saved_bytes", "seconds", "output"),
]
KEYS += ["teaching", "notes"]


def command(*arguments):
    return [sys.executable, "-c", "from datapipe.cli import main; main()", *map(str, arguments)]


def shell(*arguments, **options):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, **options
    )


def test_json_prints_exactly_one_object(run, tmp_path, make_folder, make_broken):
    raw = make_folder(tmp_path / "raw", 5)
    make_broken(raw)
    result = run("pack", raw, tmp_path / "out", "--json", "--max-rejects", 4, "--shard-size", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    report = json.loads(result.stdout)
    assert list(report) == KEYS
    assert report.pop("teaching")["with_labels"] == 5
    values = [5, 5, 0, 0, 4, 0, 3, 0, 0, 0, str(tmp_path / "out"), []]
    names = [name for name in KEYS if name != "teaching"]
    assert report | {"bytes": 0, "seconds": 0} == dict(zip(names, values, strict=True))
    assert report["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))
    assert report["seconds"] >= 0


def test_json_of_a_finished_pack_and_of_a_dry_run_has_the_same_keys(run, tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 2)
    dry = run("pack", raw, tmp_path / "out", "--json", "--dry-run")
    first, again = (run("pack", raw, tmp_path / "out", "--json") for _ in range(2))
    assert [list(json.loads(result.stdout)) for result in (dry, first, again)] == [KEYS] * 3
    assert json.loads(again.stdout)["samples"] == json.loads(dry.stdout)["samples"] == 2


def test_the_report_is_plain_when_piped(tmp_path, make_folder, make_broken):
    raw = make_folder(tmp_path / "raw", 4)
    make_broken(raw)
    result = shell("pack", raw, tmp_path / "out", "--max-rejects", "60%")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == f"Packed {tmp_path / 'out'}"
    assert ["samples", "4"] in [line.split() for line in lines]
    assert ["rejected", "4"] in [line.split() for line in lines]
    assert "rejected empty.jpg: file is empty" in lines
    assert lines[-1] == f"all rejects: {tmp_path / 'out' / 'rejects.jsonl'}"


def test_a_dry_run_needs_no_output(run, tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 5)
    done = run("pack", raw, "--dry-run", "--json")
    assert (done.exit_code, json.loads(done.stdout)["samples"]) == (0, 5)
    assert json.loads(done.stdout)["output"] == ""
    assert run("pack", raw, "--dry-run").stdout.startswith("Would pack\n  samples ")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "OUT (`out`) is missing: give a folder or URL for the shards, or --dry-run to read"),
        (("--to", "memmap", "--image-size", 32), "OUT is missing: give a folder for the arrays"),
        (("--dry-run", "--append"), "--append has no effect without OUT"),
        (("--dry-run", "--staging", "s"), "--staging has no effect without OUT"),
    ],
)
def test_a_missing_output_is_one_line(run, tmp_path, make_folder, options, said):
    done = run("pack", make_folder(tmp_path / "raw", 2), *options)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {said}")
    assert done.stderr.count("\n") == 1


def test_the_report_of_a_dry_run_and_of_a_finished_pack_say_so(run, tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 2)
    assert "Would pack into" in run("pack", raw, tmp_path / "out", "--dry-run").stdout
    run("pack", raw, tmp_path / "out")
    assert "is packed already, nothing to do" in run("pack", raw, tmp_path / "out").stdout


def test_options_reach_the_pack(run, tmp_path, make_llava, members):
    records = [
        {"image": "a.jpg", "conversations": [{"from": "human", "value": f"<image> {i}"}]}
        for i in range(9)
    ]
    path = make_llava(tmp_path / "raw", records)
    (tmp_path / "raw" / "a.jpg").rename(tmp_path / "a.jpg")
    result = run(
        *("pack", path, tmp_path / "out", "--image-root", tmp_path, "--limit", 7, "--workers", 2),
        *("--shard-size", 3, "--check", "header", "--format", "llava", "--max-rejects", 0),
    )
    assert result.exit_code == 0
    document = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert document["parts"][0]["options"] == {
        "format": "llava", "shard_size": "3", "check": "header", "limit": 7
    }  # fmt: skip
    assert len(members(tmp_path / "out")) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack", "nowhere", "out"], "nowhere: no such file or folder"),
        (["pack", "raw", "raw/out"], "is inside the raw data"),
        (["pack", "raw", "out", "--shard-size", "big"], "--shard-size 'big' is neither"),
        (["pack", "raw", "out", "--format", "xyz"], "format 'xyz' is not known"),
        (["pack", "raw", "out", "--max-rejects", "0"], "more than --max-rejects 0 allows"),
        (["index", "nowhere"], "nowhere: no such folder"),
        (["index", "raw/000.jpg"], "is a file"),
        (["index", "raw"], "no .tar file is here or below"),
    ],
)
def test_a_user_error_is_one_message_without_a_traceback(
    run, tmp_path, make_folder, make_broken, monkeypatch, arguments, message
):
    make_broken(make_folder(tmp_path / "raw", 1))
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("Error: ") == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_disk_error_is_a_message_without_a_traceback(run, tmp_path, make_folder, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = run("pack", make_folder(tmp_path / "raw", 1), tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "No space left on device" in result.stderr


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(tmp_path, make_llava):
    turns = [{"from": "human", "value": "text " * 50}]
    raw = make_llava(tmp_path / "raw", [{"conversations": turns}] * 20_000, "data.jsonl")
    process = subprocess.Popen(
        command("pack", raw, tmp_path / "out", "--shard-size", 100, "--workers", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list((tmp_path / "out").glob("*.tar")) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stdout == ""
    assert stderr.strip().startswith("Interrupted; run the same command again, which continues")
    assert "Traceback" not in stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    assert list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (datapipe.PackError("no such thing"), 1, "Error: no such thing"),
        (OSError(28, "No space left on device", "out"), 1, "Error: out: No space left on device"),
        (KeyboardInterrupt(), 130, "Interrupted; run the same command again"),
    ],
)
def test_a_command_cannot_end_with_a_traceback_for_what_a_user_can_mend(error, code, said):
    app = typer.Typer(cls=Commands)

    @app.command()
    def new():
        raise error

    @app.command()
    def other(): ...

    result = CliRunner().invoke(app, ["new"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.strip().startswith(said)


def test_ctrl_c_after_the_end_of_a_command_does_not_change_its_exit_code():
    # Sends SIGINT while the modules are torn down.
    program = """
import os, signal, sys
class Late:
    def __init__(self):
        self.kill, self.pid, self.number = os.kill, os.getpid(), signal.SIGINT
    def __del__(self):
        self.kill(self.pid, self.number)
late = Late()
sys.argv = ["datapipe", "--version"]
from datapipe.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_index_makes_foreign_tars_a_dataset(run, tmp_path, make_tar, jpeg):
    for shard in range(2):
        make_tar(tmp_path / f"{shard}.tar", [(f"{shard}.jpg", jpeg(0)), (f"{shard}.txt", b"hi")])
    result = run("index", tmp_path, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    size = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    assert json.loads(result.stdout) == {
        "samples": 2, "images": 2, "shards": 2, "bytes": size, "output": str(tmp_path)
    }  # fmt: skip
    assert run("index", tmp_path).stdout.startswith(f"Indexed {tmp_path}\n  samples   2\n")


def test_index_again_needs_force_where_shards_changed(run, tmp_path, make_tar):
    make_tar(tmp_path / "0.tar", [("0.txt", b"hi")])
    run("index", tmp_path)
    make_tar(tmp_path / "1.tar", [("1.txt", b"hi")])
    assert "--force" in run("index", tmp_path).stderr
    assert json.loads(run("index", tmp_path, "--force", "--json").stdout)["samples"] == 2


def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path):
    # An import hook interrupts at the first module of that name.
    program = """
import builtins, sys
real = builtins.__import__
def interrupt(name, *rest):
    if name == "typer":
        raise KeyboardInterrupt
    return real(name, *rest)
builtins.__import__ = interrupt
from datapipe.cli import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", program, "plan", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "\nInterrupted.\n")


def piped(*arguments, **options):
    """Runs the command with its output to a reader that has gone; exit code and what it says."""
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True, **options)
    process.stdout.close()
    errors = process.stderr.read() if process.stderr else ""
    return process.wait(), errors


@pytest.mark.campaign
@pytest.mark.parametrize(
    "arguments",
    [
        ["pack", "raw", "out"],
        ["pack", "raw", "out", "--json"],
        ["plan", "out", "--batch-size", 2],
        ["inspect", "out", "--image-size", 32],
        ["index", "out", "--sidecars", "dali"],
        ["--version"],
        ["--help"],
        ["plan", "--help"],
        [],
    ],
)
def test_output_that_cannot_be_written_ends_every_command(tmp_path, make_folder, arguments):
    make_folder(tmp_path / "raw", 2)
    if "pack" not in arguments:
        datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out")
    code, errors = piped(*arguments, cwd=tmp_path, stderr=subprocess.PIPE)
    assert (code, errors) == (128 + signal.SIGPIPE, "")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*arguments), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: standard output: No space left on device\n",
    )


def test_an_error_counts_more_than_a_full_disk(tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("pack", tmp_path / "nowhere", tmp_path / "out"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "nowhere: no such file or folder" in done.stderr


def test_a_closed_standard_output_is_none(tmp_path):
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command("--version")], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_counts_more_than_a_reader_that_goes_away(tmp_path):
    code, errors = piped("pack", "nowhere", "out", cwd=tmp_path, stderr=subprocess.PIPE)
    assert code == 1
    assert errors.startswith("Error: nowhere")


def test_errors_that_go_to_the_closed_pipe_too_are_quiet(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 1)
    assert piped("pack", raw, tmp_path / "out", stderr=subprocess.STDOUT)[0] == 141


def test_another_broken_pipe_is_an_error(run, tmp_path, make_folder, monkeypatch):
    def broken(descriptor):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("os.fsync", broken)
    result = run("pack", make_folder(tmp_path / "raw", 1), tmp_path / "out")
    assert result.exit_code == 1
    assert "Broken pipe" in result.stderr


def test_a_list_of_shards_is_indexed(run, tmp_path, make_tar, jpeg):
    for n in range(3):
        make_tar(tmp_path / f"{n}.tar", [(f"{n}.jpg", jpeg(n)), (f"{n}.txt", b"text")])
    result = run("index", f"{tmp_path}/{{0..1}}.tar", "--json", "--sidecars", "dali")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["samples"] == 2
    assert sorted(path.name for path in tmp_path.glob("*.idx")) == ["0.idx", "1.idx"]
    assert run("index", tmp_path / "2.tar").exit_code == 0
    result = run("plan", f"{tmp_path}/*.tar", "--batch-size", 1)
    assert (result.exit_code, "steps" in result.stdout) == (0, True)
    missing = run("index", f"{tmp_path}/{{0..9}}.tar")
    assert missing.exit_code == 1
    assert "3.tar and 6 more of the 10 tars" in missing.stderr
    packed = run("pack", f"{tmp_path}/{{2..0}}.tar", tmp_path / "out", "--json")
    assert json.loads(packed.stdout)["samples"] == 3


def test_sidecars_of_a_pack_need_no_tokenizer(run, tmp_path, make_folder):
    run("pack", make_folder(tmp_path / "raw", 3), tmp_path / "out", "--shard-size", 2)
    result = run("index", tmp_path / "out", "--sidecars", "dali,wids")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == (
        f"Wrote the sidecars of {tmp_path / 'out'} (dali, wids)"
    )
    assert sorted(path.name for path in (tmp_path / "out").glob("*.idx")) == [
        "shard-000000.idx", "shard-000001.idx"
    ]  # fmt: skip
    assert (tmp_path / "out" / "shardindex.json").exists()
    assert run("index", tmp_path / "out").exit_code == 1  # there is nothing to do
    run("convert", tmp_path / "out", tmp_path / "arrays", "--image-size", 32)
    result = run("index", tmp_path / "arrays", "--sidecars", "dali")
    assert (result.exit_code, "holds arrays" in result.stderr) == (1, True)


@pytest.mark.parametrize("given", ["[1]", "{", "no/such/file.json", '{"a": 1'])
def test_a_runtime_env_that_is_no_json_object_is_refused(run, tmp_path, given):
    result = run("pack", tmp_path, tmp_path / "out", "--engine", "ray", "--runtime-env", given)
    assert result.exit_code == 1
    assert f"--runtime-env {given!r}" in result.stderr
