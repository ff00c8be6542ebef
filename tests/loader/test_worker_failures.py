"""Failures in worker processes: what ends a loop, and what the error and the log say."""

import gc
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import datapipe
from datapipe import DatapipeError, DecodeError, Loader, PlanError, StoreError
from datapipe.testing import assert_same_batches
from tests.workers.process_list import left, worker_processes

Make = Callable[..., Loader]
Import = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert left(worker_processes()) == set()


def test_the_first_failing_sample_is_named_after_the_batches_before_it(damaged: Path) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": False, "num_workers": 2}
    options["image"] = datapipe.ImageSpec(size=16)
    loader = datapipe.make_loader(damaged, workers="processes", **options)
    seen: list[str] = []
    for _ in range(2):  # the same workers go on
        with pytest.raises(DecodeError, match=r"sample 000000006 .*not those that were packed"):
            seen.extend(key for batch in loader for key in batch["key"])
    assert seen == [f"{number:09}" for number in range(6)] * 2
    assert len(worker_processes()) == 2


def test_skipped_samples_are_counted_and_logged_where_the_loop_is(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"batch_size": 4, "on_error": "skip", "num_workers": 2}
    options["image"] = datapipe.ImageSpec(size=16)
    loader = datapipe.make_loader(damaged, workers="processes", **options)
    assert_same_batches(loader, datapipe.make_loader(damaged, **options))
    assert loader.skipped == 2
    assert "skipped sample 000000006" in caplog.text
    with pytest.raises(DatapipeError, match="max_skipped=1"):
        list(
            datapipe.make_loader(
                damaged, workers="processes", run=datapipe.RunSpec(max_skipped=1), **options
            )
        )


def test_a_shard_that_is_gone_ends_the_loop(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(packed, folder)
    loader = datapipe.make_loader(folder, batch_size=4, num_workers=2, workers="processes")
    (folder / "shard-000002.tar").unlink()
    with pytest.raises(StoreError, match=r"shard-000002\.tar") as caught:
        list(loader)
    assert "in a worker process" in str(caught.value.__cause__)


def test_functions_that_cannot_be_imported_are_refused_at_once(make_processes: Make) -> None:
    with pytest.raises(PlanError, match=r"lambda.*top of a module"):
        make_processes(transform=lambda sample, _: sample)


def test_a_worker_that_is_killed_is_told_from_other_errors(
    make: Make, make_processes: Make, user_module: Import, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    module = user_module(
        f"""
        import os, signal
        def killed(sample, generator):
            if sample["key"].endswith("9") and not os.path.exists({str(once)!r}):
                open({str(once)!r}, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return sample
        """
    )
    loader = make_processes(transform=module.killed)
    with pytest.raises(
        DatapipeError, match=r"ended by SIGKILL at the batch from sample.*memory.*fewer num_workers"
    ):
        list(loader)
    assert left(worker_processes()) == set()
    assert_same_batches(loader, make(shuffle=False), "with new workers")


@pytest.mark.parametrize(("kind", "seconds"), [("threads", 0.1), ("processes", 1.5)])
def test_a_stalled_worker_is_named_with_sample_and_stage(
    make_processes: Make,
    user_module: Import,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    seconds: float,
) -> None:
    seen = tmp_path / "seen"
    module = user_module(
        f"""
        import os, time
        def wait(sample, generator):
            while sample["key"] == "000000002" and not os.path.exists({str(seen)!r}):
                time.sleep(0.01)
            return sample
        """
    )

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.touch()

    logger = logging.getLogger("datapipe.loader.workers.executor")
    logger.addHandler(release := Release())
    try:
        list(
            make_processes(
                transform=module.wait,
                workers=datapipe.WorkerSpec(kind, stall_warning=seconds),
                batch_size=8,
            )
        )
    finally:
        logger.removeHandler(release)
    assert "sample 000000002 of shard-000000.tar in stage 'transform'" in caplog.text
