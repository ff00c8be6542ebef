"""What a loader leaves behind: nothing."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from datapipe import DatapipeError, Loader
from datapipe.decode.transform import ImageTransform

Make = Callable[..., Loader]


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("datapipe-worker")]


def open_shards() -> list[str]:
    """Tar files that this process holds open."""
    held = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if target.endswith(".tar"):
            held.append(target)
    return held


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert workers() == []
    assert open_shards() == []


def test_leaving_the_loop_early_stops_the_workers(make: Make) -> None:
    loader = make()
    for _ in loader:
        assert len(workers()) == 2
        assert open_shards()
        break
    assert workers() == []
    assert open_shards() == []


def test_an_exception_in_the_loop_stops_the_workers(make: Make) -> None:
    def train() -> None:
        for _ in make():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()
    gc.collect()
    assert workers() == []


def test_reading_an_epoch_to_its_end_stops_the_workers(make: Make) -> None:
    loader = make()
    list(loader)
    assert workers() == []
    assert open_shards() == []


def test_a_new_iterator_closes_the_one_before_it(make: Make) -> None:
    loader = make()
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(DatapipeError, match="another one was started"):
        next(first)
    next(second)
    assert len(workers()) == 2
    loader.close()


def test_closing_twice_is_closing_once(make: Make) -> None:
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    iterator.close()
    assert next(iter(loader)) is not None


def test_no_workers_means_no_threads(make: Make) -> None:
    before = threading.active_count()
    for _ in make(num_workers=0):
        assert threading.active_count() == before


def test_a_loader_dropped_without_being_read_leaves_nothing(make: Make) -> None:
    iter(make())


def test_hundred_short_epochs_do_not_accumulate_anything(make: Make) -> None:
    loader = make(batch_size=37)
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        for _ in loader:
            break
    gc.collect()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_the_threads_of_torch_are_as_many_as_before(make: Make) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    inside: list[int] = []
    place = ImageTransform.place

    def spy(self: ImageTransform, pixels: object, out: torch.Tensor) -> None:
        inside.append(torch.get_num_threads())
        place(self, pixels, out)  # type: ignore[arg-type]

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ImageTransform, "place", spy)
            for _ in make():
                assert torch.get_num_threads() == 2
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 2
        assert later == [2]
        assert set(inside) == {1}
    finally:
        torch.set_num_threads(before)


def test_a_stalled_loader_names_the_sample_and_the_stage(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hold = threading.Event()
    place = ImageTransform.place

    def slow(self: ImageTransform, pixels: object, out: torch.Tensor) -> None:
        hold.wait(30)
        place(self, pixels, out)  # type: ignore[arg-type]

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hold.set()

    monkeypatch.setattr(ImageTransform, "place", slow)
    logger = logging.getLogger("datapipe.loader.executor")
    logger.addHandler(release := Release())
    try:
        next(iter(make(stall_warning=0.05, shuffle=False, num_workers=1)))
    finally:
        logger.removeHandler(release)
    assert "sample 000000000 of shard-000000.tar in stage 'resize'" in caplog.text


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


def test_ctrl_c_ends_a_waiting_loop_at_once(packed: Path) -> None:
    body = """
from datapipe.decode.transform import ImageTransform
import threading
def stuck(self, data):
    print("stuck", flush=True)
    threading.Event().wait(2)
    raise datapipe.DecodeError("late")
ImageTransform.decode = stuck
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


def test_a_worker_that_hangs_is_named_and_does_not_hold_the_program(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, hold = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        hold.wait(60)

    monkeypatch.setattr(ImageTransform, "decode", hang)
    monkeypatch.setattr("datapipe.loader.executor._PATIENCE", 0.05)
    iterator = iter(make(num_workers=1, shuffle=False))
    closing = threading.Thread(target=lambda: begun.wait(30) and iterator.close())
    closing.start()
    with pytest.raises(DatapipeError, match="closed while"):
        next(iterator)
    closing.join()
    hold.set()
    for worker in workers():
        worker.join()
    assert "a worker does not stop: sample 000000000" in caplog.text
