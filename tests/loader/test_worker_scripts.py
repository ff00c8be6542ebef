"""Programs that load with worker processes: what they may be, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.process_list import left

PATIENCE = 600  # seconds; only what hangs takes that long

PROGRAM = """
import os, sys
import datapipe
{head}
loader = datapipe.make_loader(sys.argv[1], batch_size=2, num_workers=2, workers="processes",
                              image=datapipe.ImageSpec(size=32), transform={transform})
{body}
"""

# Scripts that print their workers import a module of the tests.
WITH_TESTS = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def run(
    folder: Path, body: str, *, head: str = "", transform: str = "None"
) -> subprocess.CompletedProcess[str]:
    """Run a script that is not guarded by `if __name__ == "__main__"`."""
    script = folder.parent / f"train{abs(hash((body, head)))}.py"
    script.write_text(PROGRAM.format(head=head, body=body, transform=transform))
    return subprocess.run(
        [sys.executable, script, folder],
        capture_output=True,
        text=True,
        timeout=120,
        env=WITH_TESTS,
    )


@pytest.mark.campaign
def test_a_script_without_a_guard_is_not_run_again(packed: Path) -> None:
    done = run(packed, "print('begun'); print(sum(1 for _ in loader))")
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n19\n", "")


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("iterator = iter(loader); next(iterator)", 0),
        ("keep = [iter(loader)]; keep.append(keep); next(keep[0]); sys.exit(3)", 3),
    ],
)
def test_the_interpreter_exits_cleanly_with_workers_running(
    packed: Path, body: str, code: int
) -> None:
    head = "from tests.workers.process_list import worker_processes"
    body += "; print(*worker_processes())"
    if code:
        body = body.replace("; sys.exit(3)", "") + "; sys.exit(3)"
    done = run(packed, body, head=head)
    assert (done.returncode, done.stderr) == (code, "")
    assert left({int(pid) for pid in done.stdout.split()}) == set()


@pytest.mark.campaign
@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(0)",
        "loader.close(); os._exit(0)",
        "del loader, iterator; gc.collect(); os._exit(0)",
        "pass",
    ],
)
def test_a_forked_child_leaves_the_workers_to_its_parent(packed: Path, end: str) -> None:
    body = f"""
import gc
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    {end}
else:
    print(os.waitpid(child, 0)[1], sum(1 for _ in iterator))
"""
    done = run(packed, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 18\n", "")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "default", ["torch.set_default_device('meta')", "torch.set_default_dtype(torch.float64)"]
)
def test_defaults_of_torch_do_not_reach_batches(packed: Path, tmp_path: Path, default: str) -> None:
    script = tmp_path / "defaults.py"
    script.write_text(
        f"""
import sys, torch, datapipe
{default}
def same(sample, generator):
    return sample
if __name__ == "__main__":
    for workers, number in (("threads", 0), ("threads", 1), ("processes", 1)):
        device = datapipe.DeviceSpec("cpu", channels_last=True)
        for options in ({{"transform": same}}, {{"device": device}}):
            loader = datapipe.make_loader(sys.argv[1], batch_size=8, image=datapipe.ImageSpec(
                size=32, normalize="clip"), workers=workers, num_workers=number, **options)
            pixels = [batch["pixel_values"] for batch in loader]
            print({{rows.device.type for rows in pixels}}, {{rows.dtype for rows in pixels}},
                  f"{{sum(rows.double().sum().item() for rows in pixels):.3f}}")
"""
    )
    done = subprocess.run(
        [sys.executable, script, packed], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert len(set(lines)) == 1
    assert lines[0].startswith("{'cpu'} {torch.float32} ")


@pytest.mark.campaign
@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5])
def test_ctrl_c_while_workers_start_is_reported_once(packed: Path, seconds: float) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            PROGRAM.format(
                head="",
                body="print('begun', flush=True)\nwhile True:\n    for _ in loader: pass",
                transform="None",
            ),
            packed,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1, err
    assert err.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_workers_end_with_their_parent_however_it_ends(
    packed: Path, tmp_path: Path, number: int, code: int
) -> None:
    script = tmp_path / "endless.py"
    body = """
from tests.workers.process_list import worker_processes
while True:
    for step, _ in enumerate(loader):
        if step == 3:
            print(*worker_processes(), flush=True)
            break
"""
    script.write_text(PROGRAM.format(head="", body=body, transform="None"))
    process = subprocess.Popen(
        [sys.executable, script, packed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=WITH_TESTS,
    )
    assert process.stdout is not None
    workers = {int(pid) for pid in process.stdout.readline().split()}
    assert len(workers) == 2
    # As a terminal does it: Ctrl-C goes to the whole group.
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert left(workers) == set()
    if number == signal.SIGINT:
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert err.count("Traceback") == 1
