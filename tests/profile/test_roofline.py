"""What a machine can do is measured without a loader; ceilings are those of the samples."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from datapipe import Loader
from datapipe.profile.measure import roofline as module
from datapipe.profile.measure.alone import measure_alone
from datapipe.profile.measure.roofline import (
    COLD_STORAGE,
    Roofline,
    measure_roofline,
    run_threads,
)

pytestmark = pytest.mark.campaign  # measures real time


def measured(loader: Loader) -> Roofline:
    alone = measure_alone(loader, samples=24, seconds=1.0)
    return measure_roofline(alone, cores=2, readers=2, seconds=0.1)


def asleep(number: int) -> Iterator[float]:
    while True:
        time.sleep(0.005)
        yield 1


def test_threads_that_wait_do_twice_as_much_together():
    assert run_threads(asleep, 4, 0.3) > 2 * run_threads(asleep, 1, 0.3)


@pytest.mark.parametrize("first", [[], [0]], ids=["as it begins", "at work"])
def test_what_a_thread_raises_comes_out_and_the_others_end(first):
    def work(number: int) -> Iterator[float]:
        if number == 1:
            yield from first
            raise ZeroDivisionError("on purpose")
        yield from asleep(number)

    with pytest.raises(ZeroDivisionError):
        run_threads(work, 3, 60.0)


def test_an_interrupt_leaves_no_thread_behind():
    def work(number: int) -> Iterator[float]:
        if number == 0:
            signal.raise_signal(signal.SIGINT)  # to the main thread
        yield from asleep(number)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_threads(work, 3, 60.0)
    assert threading.active_count() <= before


def test_a_loader_of_images_has_ceilings_for_storage_kernels_and_memory(endless):
    found = measured(endless())
    assert {"storage, cached", "decode kernels", "memory copy"} <= set(found.ceilings)
    assert all(ceiling.rate > 0 for ceiling in found.ceilings.values())
    memory = found.ceilings["memory copy"]
    assert memory.bytes_per_sample is not None
    assert memory.bytes_per_sample >= 4 * 3 * 64 * 64
    assert memory.bandwidth == pytest.approx(memory.rate * memory.bytes_per_sample)
    assert set(found.scaling) == {1, 2}
    assert found.scaling[1] == 1.0


def test_a_loader_of_texts_has_none_for_kernels(endless):
    found = measured(endless(image=None))
    assert "decode kernels" not in found.ceilings
    assert set(found.scaling) == {1, 2}


def test_cold_reads_have_a_ceiling_only_where_they_are_cold(endless, monkeypatch):
    for cold in (True, False):
        monkeypatch.setattr(module, "was_cold", lambda *_, cold=cold: cold)
        assert (COLD_STORAGE in measured(endless()).ceilings) == cold
