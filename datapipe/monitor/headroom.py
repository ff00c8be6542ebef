"""Headroom of a training loop: the most that a faster pipeline could give.

One batch is replayed through the step, as if data cost nothing, and the real loader drives the same
step. Stretches of both are timed in turn, so that drift affects both, and their ratio is the
headroom.

A loader works ahead while a batch is replayed, and its first batches would then cost nothing. So
before a real stretch, batches are taken without a step until one has to be waited for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

from datapipe.errors import PlanError
from datapipe.monitor.gpu import used_cuda
from datapipe.report.table import time_text

T = TypeVar("T")

_ROUNDS = 5
_LEAST = 10  # steps of each kind, two a round
_SETTLE = 2  # steps at the start of each stretch that do not count
_MOST_AHEAD = 64  # batches that are taken to find one that has to be waited for
_NOTICEABLE = 0.05  # of a step: a shorter wait is that for a ready batch


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Upper bound of what a faster pipeline could give."""

    ratio: float  # how many times as fast training would be; median of the rounds
    # low, high: least and most of the rounds
    low: float
    high: float
    replayed: float  # seconds a step with its batch ready; median of the rounds
    real: float  # seconds a step with batches from the loader, waiting included; likewise
    rounds: int  # stretches of each kind
    steps: int  # timed of each kind

    def to_dict(self) -> dict[str, float]:
        """Convert to values that JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        gain = f"make training at most {self.ratio:.2f} times as fast"
        if self.low <= 1.01:
            gain = f"give next to nothing: {max(self.ratio, 1.0):.2f} times"
        return (
            f"a faster pipeline would {gain} ({self.low:.2f} to {self.high:.2f}); a step takes "
            f"{time_text(self.replayed)} with its batch ready and {time_text(self.real)} from "
            f"the loader ({self.rounds} rounds, {self.steps} steps each)"
        )


def measure_headroom(
    loader: Iterable[T],
    step: Callable[[T], object],
    *,
    steps: int = 100,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Headroom:
    """Measure steps on one replayed batch and on the real loader, in turn; see `Monitor.headroom`.

    The device is waited for at the ends of each stretch only; `clock` returns nanoseconds.
    """
    if steps < _LEAST:
        raise PlanError(f"steps={steps}: a ratio with a spread needs {_LEAST} steps or more")
    batches = _endless(loader)
    held = next(batches)
    each = -(-steps // _ROUNDS)
    replayed, real = [], []
    for _ in range(_SETTLE + 1):
        step(_again(held))
    for number in range(_ROUNDS):
        # The order alternates, since a stretch affects the next one.
        for replays in (True, False) if number % 2 == 0 else (False, True):
            if replays:
                # The loader works ahead at first, and takes processors from the step.
                settle = _SETTLE + each // 2
                replayed.append(_timed(lambda: step(_again(held)), settle, each, clock))
            else:
                _take_ahead(batches, clock, _NOTICEABLE * statistics.median(replayed))
                real.append(_timed(lambda: step(next(batches)), _SETTLE, each, clock))
    ratios = [b / a for a, b in zip(replayed, real, strict=True)]
    return Headroom(
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        replayed=statistics.median(replayed),
        real=statistics.median(real),
        rounds=_ROUNDS,
        steps=each * _ROUNDS,
    )


def _endless(loader: Iterable[T]) -> Iterator[T]:
    while True:
        batches = iter(loader)
        try:
            yield next(batches)
        except StopIteration:
            raise PlanError("the loader has no batches, or too few to measure") from None
        yield from batches


def _timed(run: Callable[[], object], settle: int, steps: int, clock: Callable[[], int]) -> float:
    """Return the mean seconds of `steps` runs, after `settle` ones that do not count."""
    for _ in range(settle):
        run()
    _wait_for_device()
    begun = clock()
    for _ in range(steps):
        run()
    _wait_for_device()
    return max(clock() - begun, 1) / steps / 1e9


def _take_ahead(batches: Iterator[object], clock: Callable[[], int], noticeable: float) -> None:
    for _ in range(_MOST_AHEAD):
        asked = clock()
        next(batches)
        if (clock() - asked) / 1e9 > noticeable:
            return


def _again(batch: T) -> T:
    """Copy a batch, from which the step may take fields out."""
    return batch.copy() if type(batch) is dict else batch  # type: ignore[attr-defined]


def _wait_for_device() -> None:
    if (cuda := used_cuda()) is not None:
        cuda.synchronize()
