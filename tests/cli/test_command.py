"""The `datapipe` command: what it prints, where, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest

import datapipe
from tests.programs import python


def command(*arguments):
    return [sys.executable, "-c", "from datapipe.cli import main; main()", *map(str, arguments)]


def test_a_pack_is_reported_in_plain_lines_or_as_one_json_object(
    run, read, tmp_path, make_folder, make_broken
):
    raw, out = make_folder(tmp_path / "raw", 5), tmp_path / "out"
    make_broken(raw)
    options = ("--max-rejects", 4, "--shard-size", 2)
    assert run("pack", raw, "--dry-run", *options).stdout.startswith("Would pack\n  samples ")
    assert f"Would pack into {out}" in run("pack", raw, out, "--dry-run", *options).stdout
    dry = read(run("pack", raw, "--dry-run", *options, "--json"))
    assert (dry["samples"], dry["output"]) == (5, "")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    report = read(run("pack", raw, out, *options, "--json"))
    again = read(run("pack", raw, out, *options, "--json"))
    assert dry.keys() == report.keys() == again.keys()
    counts = {"samples": 5, "images": 5, "videos": 0, "frames": 0, "rejected": 4, "lost": 0}
    counts |= {"shards": 3, "saved_bytes": 0, "output": str(out), "notes": []}
    counts["bytes"] = sum(path.stat().st_size for path in out.glob("*.tar"))
    assert report.pop("teaching")["with_labels"] == 5
    assert report.pop("seconds") >= 0
    assert report == counts == {name: again[name] for name in counts}
    assert "is packed already, nothing to do" in run("pack", raw, out, *options).stdout
    packed = run("pack", raw, tmp_path / "other", *options)
    assert (packed.exit_code, packed.stderr) == (0, "")
    assert "\x1b" not in packed.stdout
    lines = packed.stdout.splitlines()
    assert lines[0] == f"Packed {tmp_path / 'other'}"
    assert ["samples", "5"] in [line.split() for line in lines]
    assert ["rejected", "4"] in [line.split() for line in lines]
    assert "rejected empty.jpg: file is empty" in lines
    assert lines[-1] == f"all rejects: {tmp_path / 'other' / 'rejects.jsonl'}"


def test_a_url_is_packed_to_once(run, read, tmp_path, make_folder):
    url, files = f"memory://{tmp_path.name}/shards", fsspec.filesystem("memory")
    command = ["pack", make_folder(tmp_path / "raw", 5), url, "--staging", tmp_path / "staging"]
    assert f"Would pack into {url}" in run(*command, "--dry-run").stdout
    assert not files.exists(url)
    assert not (tmp_path / "staging").exists()
    assert read(run(*command, "--json"))["output"] == url
    assert f"{url} is packed already, nothing to do" in run(*command).stdout
    files.rm(f"/{tmp_path.name}", recursive=True)


def test_lists_may_be_given_in_parts(run, tmp_path, make_folder, members):
    raw = make_folder(tmp_path / "raw", 3)
    rows = [{"pic": path.name, "said": path.stem} for path in sorted(raw.glob("*.jpg"))]
    (raw / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parts = ("--map", "caption=said", "--map", "image=pic")
    assert run("pack", raw / "t.jsonl", tmp_path / "out", *parts).exit_code == 0
    packed = [(s["jpg"], s["txt"].decode()) for s in members(tmp_path / "out").values()]
    assert packed == [((raw / row["pic"]).read_bytes(), row["said"]) for row in rows]


def test_options_reach_the_pack(run, tmp_path, make_llava, members):
    turns = [{"from": "human", "value": "<image>"}]
    records = [{"image": "a.jpg", "conversations": turns}] * 9
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


INTERRUPTED = """
import os, signal, sys
moment, name = sys.argv[1:3]
del sys.argv[1:3]
def watch(event, arguments):
    global moment
    if event == moment and str(arguments[event == "os.rename"]).endswith(name):
        moment = None
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(watch)
from datapipe.cli import main
main()
"""
"""The command, interrupted where a file of that name is opened or renamed to it."""


@pytest.mark.parametrize(
    ("moment", "name", "options"),
    [
        ("os.rename", "shard-000002.tar", ("--shard-size", 100, "--workers", 2)),
        ("open", ".pack/images.npy", ("--to", "memmap", "--image", "200")),
    ],
)
def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(
    run, read, tmp_path, make_llava, moment, name, options
):
    turns = [{"from": "human", "value": "text " * 50}]
    records = [{"conversations": turns}] * 500 + [{"conversations": turns, "image": "a.jpg"}]
    raw = make_llava(tmp_path / "raw", records, "data.jsonl")
    line = ("pack", raw, tmp_path / "out", *options)
    done = python(INTERRUPTED, moment, name, *line)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr.strip().startswith("Interrupted; run the same command again; what it had")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    assert any((tmp_path / "out").glob("*.tar" if name.endswith(".tar") else "*"))
    assert read(run(*line, "--json"))["samples"] == 501


def test_an_image_that_cannot_be_written_is_an_error_in_a_line(run, tmp_path, make_tar, jpeg):
    make_tar(tmp_path / "0.tar", [("0.jpg", jpeg(0) + bytes(100_000))])  # more than a pipe holds
    pipe, full, loop = (tmp_path / name for name in ("pipe.jpg", "full.jpg", "loop.jpg"))
    os.mkfifo(pipe)
    full.symlink_to("/dev/full")
    loop.symlink_to(loop)
    reader = threading.Thread(target=lambda: pipe.open().close(), daemon=True)
    reader.start()
    for path, said in (
        (pipe, "Broken pipe"),
        (full, "No space left on device"),
        (loop, f"{loop}: Too many levels of symbolic links"),
    ):
        result = run("inspect", tmp_path, 0, "-o", path)
        assert (result.exit_code, result.stderr) == (1, f"Error: {said}\n")
    reader.join()


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
    done = python(program)
    assert (done.returncode, done.stderr) == (0, "")


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
    result = python(program, "plan", tmp_path)
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
        given = {"cwd": tmp_path, "stdout": full, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command(*arguments), **given)
    lost = "Error: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, lost)


def test_an_error_counts_more_than_lost_output(tmp_path, make_folder):
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 1), tmp_path / "a")
    quiet = piped("diff", "a", "a", cwd=tmp_path, stderr=subprocess.STDOUT)
    assert quiet[0] == 128 + signal.SIGPIPE
    code, errors = piped("diff", "a", "nowhere", cwd=tmp_path, stderr=subprocess.PIPE)
    assert code == 2
    assert errors.startswith("Error: ")
    assert "nowhere: no such folder" in errors
    closed = ["sh", "-c", '"$@" >&-', "sh", *command("--version")]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_foreign_tars_are_indexed_as_a_folder_or_a_list(
    run, read, tmp_path, make_tar, jpeg, caplog
):
    def write(number):
        members = [(f"{number}.jpg", jpeg(number)), (f"{number}.txt", b"text")]
        return make_tar(tmp_path / f"{number}.tar", members).stat().st_size

    size = write(0) + write(1)
    counts = {"samples": 2, "images": 2, "shards": 2, "bytes": size, "output": str(tmp_path)}
    assert read(run("index", tmp_path, "--json")) == counts
    assert run("index", tmp_path).stdout.startswith(f"Indexed {tmp_path}\n  samples   2\n")
    write(2)
    assert "--force" in run("index", tmp_path).stderr
    assert read(run("index", tmp_path, "--force", "--json"))["samples"] == 3
    found = read(run("index", f"{tmp_path}/{{0..1}}.tar", "--json", "--sidecars", "dali"))
    assert found["samples"] == 2
    assert sorted(path.name for path in tmp_path.glob("*.idx")) == ["0.idx", "1.idx"]
    assert run("index", tmp_path, "--force").exit_code == 0
    assert "--sidecars dali rewrites them" in caplog.text
    result = run("plan", f"{tmp_path}/*.tar", "--batch-size", 1)
    assert (result.exit_code, "steps" in result.stdout) == (0, True)
    missing = run("index", f"{tmp_path}/{{0..9}}.tar")
    assert missing.exit_code == 1
    assert "3.tar and 6 more of the 10 tars" in missing.stderr
    packed = run("pack", f"{tmp_path}/{{2..0}}.tar", tmp_path / "out", "--json")
    assert json.loads(packed.stdout)["samples"] == 3


def test_sidecars_of_a_pack_need_no_tokenizer(run, shards):
    result = run("index", shards, "--sidecars", "dali,wids")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Wrote the sidecars of {shards} (dali, wids)\n")
    assert {"shard-000000.idx", "shard-000001.idx", "shardindex.json"} <= {*os.listdir(shards)}
