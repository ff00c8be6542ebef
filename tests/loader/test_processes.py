"""Programs that load: exit, Ctrl-C, kill, fork, with threads and with worker processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.imports import IMPORTS
from tests.waiting import PATIENCE
from tests.workers.process_list import left

pytestmark = pytest.mark.campaign

PROGRAM = """
import os, sys, threading
import datapipe
loader = datapipe.make_loader(sys.argv[1], batch_size=2, num_workers=2, workers="{workers}",
                              image=datapipe.ImageSpec(size=32))
{body}
"""


def run(body, folder, *args, workers="threads"):
    """Run a program that is not guarded by `if __name__ == "__main__"`."""
    script = folder.parent / f"train{abs(hash((body, workers)))}.py"
    script.write_text(PROGRAM.format(body=body, workers=workers))
    return subprocess.run(
        [sys.executable, script, str(folder), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | IMPORTS,  # programs that print their workers import a module of the tests
    )


def interrupted(body, folder, seconds=0):
    """Send Ctrl-C some time after the first line of a program; return its lines and its status."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, workers="threads"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()  # a lost signal must not leave it running
    return out, err.splitlines(), process.returncode


@pytest.mark.parametrize(
    ("body", "code", "workers"),
    [
        ("iterator = iter(loader); next(iterator)", 0, "processes"),
        ("keep = [iter(loader)]; keep.append(keep); next(keep[0])", 3, "threads"),
        ("threading.current_thread().iterator = iter(loader)", 0, "processes"),
    ],
)
def test_the_interpreter_exits_cleanly_with_an_iterator_open(packed, body, code, workers):
    show = "from tests.workers.process_list import worker_processes; print(*worker_processes())"
    done = run(f"{body}\n{show}\nsys.exit({code})", packed, workers=workers)
    assert (done.returncode, done.stderr) == (code, "")
    assert left({int(pid) for pid in done.stdout.split()}) == set()


def test_ctrl_c_ends_a_waiting_loop_at_once(packed):
    body = """
import signal
from datapipe.decode.forms.fixed import FixedTransform
came = threading.Event()
def interrupt(*_):
    came.set()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def stuck(self, data, indexed=None):
    os.write(1, b"stuck\\n")
    came.wait()
    raise datapipe.DecodeError("late")
FixedTransform.decode = stuck
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""
    out, err, code = interrupted(body, packed, 0.2)
    assert (out.splitlines()[-1], err, code) == ("interrupted 1", [], 0)


def test_ctrl_c_is_never_lost_between_loops_that_are_left_early(packed):
    body = """
print("running", flush=True)
while True:
    for step, _ in enumerate(loader):
        if step == 1:
            break
"""
    for number in range(0, 6, 2):
        _, err, code = interrupted(body, packed, 0.01 * number)
        assert (code, err[-1]) == (-signal.SIGINT, "KeyboardInterrupt"), err
        assert not any("ignored" in line for line in err)


def test_a_killed_run_goes_on_with_the_batch_that_would_have_come(packed, tmp_path):
    body = """
import json, signal
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
    codes = [run(body, packed, log, saved, last).returncode for last in (0, 8, 18, 30)]
    assert codes == [-signal.SIGKILL] * 3 + [0]
    whole = run("for batch in loader: print(' '.join(batch['key']))", packed)
    assert log.read_text() == whole.stdout


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_loader_carried_over_a_fork_says_so(packed, workers):
    body = f"""
import time
iterator = iter(loader)
next(iterator)
used = -1.0  # the workers must be idle: a fork copies the locks that torch holds at work
while time.process_time() - used > 0.01:
    used = time.process_time()
    time.sleep(0.5)
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
    out = run(body, packed, workers=workers).stdout.splitlines()
    assert all("before a fork" in line and "call make_loader" in line for line in out[:2])
    assert out[2:] == ["18", "18"]


def test_a_forked_child_leaves_the_workers_to_its_parent(packed):
    body = """
import gc
iterator = iter(loader)
next(iterator)
for end in (
    "sys.exit(0)",
    "loader.close(); os._exit(0)",
    "del loader, iterator; gc.collect(); os._exit(0)",
    "",
):
    child = os.fork()
    if child == 0:
        exec(end)
        break
    print(os.waitpid(child, 0)[1], flush=True)
else:
    print(sum(1 for _ in iterator))
"""
    done = run(body, packed, workers="processes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n" * 4 + "18\n", "")
