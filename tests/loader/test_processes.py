"""Loaders in processes of their own: exit, Ctrl-C, kill, fork."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading
import datapipe
loader = datapipe.make_loader(sys.argv[1], batch_size=2, num_workers=2,
                              image=datapipe.ImageSpec(size=32))
{body}
"""


def run(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(body=body)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("iterator = iter(loader); next(iterator)", 0),
        ("iterator = iter(loader); next(iterator); sys.exit(3)", 3),
        ("keep = [iter(loader)]; keep.append(keep); next(keep[0])", 0),
        ("threading.current_thread().iterator = iter(loader)", 0),
    ],
)
def test_the_interpreter_exits_cleanly_with_an_iterator_open(
    packed: Path, body: str, code: int
) -> None:
    done = run(body, packed)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.campaign
def test_ctrl_c_ends_a_waiting_loop_at_once(packed: Path) -> None:
    body = """
from datapipe.decode.forms.fixed import FixedTransform
import os, threading
def stuck(self, data, indexed=None):
    os.write(1, b"stuck\\n")
    threading.Event().wait(2)
    raise datapipe.DecodeError("late")
FixedTransform.decode = stuck
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body), str(packed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "interrupted 1"
    assert err == ""
    assert process.returncode == 0


@pytest.mark.campaign
def test_a_killed_run_goes_on_with_the_batch_that_would_have_come(
    packed: Path, tmp_path: Path
) -> None:
    body = """
import json, os, signal
from pathlib import Path
log, saved = Path(sys.argv[2]), Path(sys.argv[3])
if saved.exists():
    loader.load_state_dict(json.loads(saved.read_text()))
for batch in loader:
    with log.open("a") as file:
        file.write(" ".join(batch["key"]) + "\\n")
    saved.write_text(json.dumps(loader.state_dict()))
    unit = loader.state_dict()["unit"]
    if unit in (8, 18, 30) and unit != int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
"""
    log, saved = tmp_path / "log", tmp_path / "state.json"
    codes = []
    for last in (0, 8, 18, 30):
        done = subprocess.run(
            [
                *(sys.executable, "-c", PROGRAM.format(body=body), str(packed)),
                *(str(log), str(saved), str(last)),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        codes.append(done.returncode)
    assert codes == [-signal.SIGKILL] * 3 + [0], done.stderr
    whole = run("for batch in loader: print(' '.join(batch['key']))", packed)
    assert log.read_text() == whole.stdout


@pytest.mark.campaign
def test_ctrl_c_is_never_lost_between_loops_that_are_left_early(packed: Path) -> None:
    body = """
print("running", flush=True)
while True:
    for step, _ in enumerate(loader):
        if step == 1:
            break
"""
    command = [sys.executable, "-c", PROGRAM.format(body=body), str(packed)]
    for number in range(6):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        time.sleep(0.01 * number)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()  # a lost signal must not leave it running
        assert process.returncode == -signal.SIGINT, err
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert "ignored" not in err


@pytest.mark.campaign
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_loader_carried_over_a_fork_says_so(packed: Path, workers: str) -> None:
    body = f"""
import os, time
loader = datapipe.make_loader(sys.argv[1], batch_size=2, num_workers=2, workers="{workers}",
                              image=datapipe.ImageSpec(size=32))
iterator = iter(loader)
next(iterator)
time.sleep(1)  # the workers wait by then: whoever forks amid torch's work copies its locks
if os.fork() == 0:
    for ask in (lambda: next(iterator), lambda: iter(loader)):
        try:
            ask()
        except datapipe.DatapipeError as error:
            print(error, flush=True)
    mine = datapipe.make_loader(sys.argv[1], batch_size=2, num_workers=2, workers="{workers}",
                                image=datapipe.ImageSpec(size=32))
    mine.load_state_dict(loader.state_dict())
    print(sum(1 for _ in mine), flush=True)
    mine.close()
    os._exit(0)
os.wait()
print(sum(1 for _ in iterator))
"""
    out = run(body, packed).stdout.splitlines()
    assert all("before a fork" in line and "call make_loader" in line for line in out[:2])
    assert out[2:] == ["18", "18"]
