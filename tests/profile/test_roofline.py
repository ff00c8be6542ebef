"""What a machine can do is measured without a loader; ceilings are those of the samples."""

import signal
import threading
import time

import pytest

from datapipe.profile.measure.alone import measure_alone
from datapipe.profile.measure.roofline import COLD_STORAGE, measure_roofline, run_threads

pytestmark = pytest.mark.campaign  # measures real time


def asleep(number):
    while True:
        time.sleep(0.005)
        yield 1


def test_threads_that_wait_do_twice_as_much_together():
    assert run_threads(asleep, 4, 0.3) > 2 * run_threads(asleep, 1, 0.3)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("first", [[], [0]], ids=["as it begins", "at work"])
def test_what_a_thread_raises_and_an_interrupt_come_out_and_leave_no_thread(first, error):
    def work(number):
        if number == 1:
            yield from first
            if error is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)  # to the main thread
            else:
                raise error
        yield from asleep(number)

    before = threading.active_count()
    with pytest.raises(error):
        run_threads(work, 3, 60.0)
    assert threading.active_count() <= before


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("cold", [True, False])
def test_ceilings_are_those_of_what_the_loader_does(endless, delivers, images, cold):
    delivers(cold * 10**12)
    loader = endless() if images else endless(image=None)
    alone = measure_alone(loader, samples=24, seconds=1.0)
    found = measure_roofline(alone, cores=2, readers=2, seconds=0.1)
    assert {"storage, cached", "memory copy"} <= set(found.ceilings)
    assert ("decode kernels" in found.ceilings) == images
    assert (COLD_STORAGE in found.ceilings) == cold
    assert all(ceiling.rate > 0 for ceiling in found.ceilings.values())
    memory = found.ceilings["memory copy"]
    assert memory.bytes_per_sample >= 4 * 3 * 64 * 64 * images
    assert memory.bandwidth == pytest.approx(memory.rate * memory.bytes_per_sample)
    assert set(found.scaling) == {1, 2}
    assert found.scaling[1] == 1.0
