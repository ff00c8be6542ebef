"""The most that a faster pipeline could give, on a virtual clock."""

import random

import pytest

import datapipe


class World:
    """A clock, and a loader that works ahead beside whatever the loop does."""

    def __init__(self, *, make, ahead, count=10**9, noise=0.0):
        self.now = 0.0
        self.make, self.ahead, self.count = make, ahead, count
        self.noise = random.Random(3), noise
        self.passes = 0

    def __call__(self):
        return round(self.now * 1e9)

    def sleep(self, seconds):
        draw, noise = self.noise
        self.now += seconds * draw.uniform(1 - noise, 1 + noise)

    def __iter__(self):
        self.passes += 1
        done: list[float] = []  # when each batch was finished
        taken: list[float] = []
        for number in range(self.count):
            begun = self.now if not (done and self.ahead) else done[-1]
            if number >= self.ahead > 0:  # no room before
                begun = max(begun, taken[number - self.ahead])
            done.append(begun + self.make)
            self.now = max(self.now, done[-1])
            taken.append(self.now)
            yield {"batch": number}


def measure(world, step, **options):
    monitor = datapipe.Monitor(clock=world)
    return monitor.headroom(world, lambda _: world.sleep(step), **options)


@pytest.mark.parametrize("ahead", [0, 2, 16])
@pytest.mark.parametrize(("make", "step"), [(0.05, 0.1), (0.11, 0.1), (0.15, 0.1), (0.3, 0.1)])
def test_headroom_is_the_loaders_time_over_the_steps(make, step, ahead):
    found = measure(World(make=make, ahead=ahead), step)
    # Without anything ahead, a batch is made while its step waits.
    expected = (make + step) / step if ahead == 0 else max(make, step) / step
    assert found.ratio == pytest.approx(expected, rel=0.01)
    assert found.low <= found.ratio <= found.high
    assert found.replayed == pytest.approx(step)


def test_noise_shows_in_the_spread():
    found = measure(World(make=0.2, ahead=4, noise=0.3), 0.1)
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(2.0, rel=0.1)


def test_a_loader_that_ends_is_begun_again():
    world = World(make=0.2, ahead=2, count=30)
    assert measure(world, 0.1, steps=50).ratio == pytest.approx(2.0, rel=0.1)
    assert world.passes > 2


def test_the_step_gets_a_batch_as_if_it_were_new():
    seen: list[int] = []

    def step(batch):
        seen.append(batch.pop("batch"))

    datapipe.Monitor().headroom(World(make=0.0, ahead=0), step, steps=10)
    assert seen.count(0) > 10
    assert len(set(seen)) > 10


def test_what_it_says_can_be_read():
    good = str(measure(World(make=0.05, ahead=4), 0.1))
    assert good.startswith("a faster pipeline would give next to nothing: 1.00 times")
    bad = str(measure(World(make=0.25, ahead=4), 0.1))
    assert bad.startswith("a faster pipeline would make training at most 2.50 times as fast")
    assert "100 ms with its batch ready and 250 ms from the loader" in bad


def test_too_little_to_measure_is_refused():
    monitor = datapipe.Monitor()
    with pytest.raises(datapipe.PlanError, match="steps=9"):
        monitor.headroom([1], print, steps=9)
    with pytest.raises(datapipe.PlanError, match="no batches"):
        monitor.headroom([], lambda _: None)
    with pytest.raises(datapipe.PlanError, match="too few"):
        monitor.headroom(iter([1, 2, 3]), lambda _: None)
    with pytest.raises(ZeroDivisionError):
        monitor.headroom([1, 2], lambda batch: batch / 0)
