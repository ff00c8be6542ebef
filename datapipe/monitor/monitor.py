"""`Monitor`, which measures a training loop while it trains."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from datapipe.declared import Count, Natural, checked
from datapipe.diagnosis.loop_figures import Verdict
from datapipe.diagnosis.loop_rules import judge
from datapipe.errors import PlanError
from datapipe.monitor.headroom import Headroom, measure_headroom
from datapipe.monitor.loop_timer import STEP, TRANSFER
from datapipe.monitor.report import LoopReport, save_page
from datapipe.monitor.session import LoopMeter
from datapipe.monitor.trace import LoopTrace

T = TypeVar("T")

WARM_UP = 5
"""Batches at the start that are left out of all figures."""


class Monitor:
    """Measures a training loop: waiting, transfers, steps, and its limit.

        monitor = datapipe.Monitor()
        for batch in monitor(loader):
            with monitor.step():
                train(batch)
        print(monitor.report())

    It takes some microseconds a step and constant memory, and never waits for the device. Figures
    leave the warm-up out; the first batch of each pass over the loader is reported apart. A few
    steps are recorded by torch's profiler, and their turns are in no other figure. When waiting
    takes over 10 % of the time, the log says so once.

    One monitor is for one loop in one thread; a loop inside of it gets a monitor of its own.

    Args:
        warmup: batches at the start that are left out.
        gpu: ask NVML in a thread, a few times a second, how busy the GPU is.
        meter: let a datapipe loader time its stages.
        ranges: mark waiting, transfers, steps and the loader's stages as ranges for profilers
            (`record_function`, NVTX). While torch's profiler runs, all but the stages are marked
            anyway.
        trace: file to write a trace to, as `trace()` does.
        trace_steps: steps to let pass before that trace, and steps to trace.
        clock: function that returns nanoseconds.

    Examples:
        >>> monitor = datapipe.Monitor(warmup=1)
        >>> for batch in monitor(datapipe.make_loader("shards/", batch_size=2)):
        ...     with monitor.step():
        ...         loss = batch["pixel_values"].float().mean()
        >>> print(monitor.report())  # doctest: +SKIP
    """

    @checked(PlanError)
    def __init__(
        self,
        *,
        warmup: Natural = WARM_UP,
        gpu: bool = True,
        meter: bool = True,
        ranges: bool = False,
        trace: str | os.PathLike[str] | None = None,
        trace_steps: tuple[Natural, Count] = (10, 5),
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._meter = LoopMeter(warmup=warmup, gpu=gpu, meter=meter, ranges=ranges, clock=clock)
        self._step, self._transfer = PartMark(self._meter, STEP), PartMark(self._meter, TRANSFER)
        if trace is not None:
            self.trace(trace, steps=trace_steps)

    @checked(PlanError)
    def __call__(self, loader: Iterable[T]) -> Monitored[T]:
        """Wrap a loader, so that its batches are timed: iterate over it in place of the loader.

        It has the loader's length and attributes; batches are the loader's own, and none is kept.
        """
        return Monitored(self._meter, loader)

    def step(self) -> PartMark:
        """Mark the training step: `with monitor.step(): ...`, once or more for each batch."""
        return self._step

    def transfer(self) -> PartMark:
        """Mark a copy: `with monitor.transfer(): batch = batch.to(device)`; also in a step."""
        return self._transfer

    @property
    def verdict(self) -> Verdict:
        """Verdict on the limit of the loop so far, with the next things to do."""
        return judge(self._meter.counters().figures(thoroughly=True))

    def report(self) -> LoopReport:
        """Report everything so far; cheap enough for every minute."""
        return self._meter.counters().report()

    @checked(PlanError)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file that needs nothing else.

        Raises:
            PlanError: matplotlib, which draws it, is not installed.
            DatapipeError: the file cannot be written.
        """
        save_page(self.report(), path)

    @checked(PlanError)
    def trace(
        self, path: str | os.PathLike[str], *, steps: tuple[Natural, Count] = (10, 5)
    ) -> None:
        """Write a Chrome trace of some steps, for ui.perfetto.dev or chrome://tracing.

        It shows waiting, transfers and steps, the events of torch's profiler, and the stages of a
        datapipe loader if it is ordered before the loop begins. It is written when its last step
        has ended, or the pass over the loader; its steps are in no figure. `steps` tells how many
        to let pass from now on, and how many to trace. A file of this name is replaced.

        Raises:
            PlanError: a number is out of range, the folder is not there, or a trace is being made.
        """
        self._meter.order(LoopTrace(Path(path), *steps, self._meter.clock))

    @checked(PlanError)
    def headroom(
        self, loader: Iterable[T], step: Callable[[T], object], *, steps: int = 100
    ) -> Headroom:
        """Measure the most that a faster pipeline could give: one batch replayed, and the loader.

        The step is a real one and trains, so give it a copy of the model, or do this before
        training. The loader's position moves on; one with few batches is begun again. The device
        is waited for at the ends of each stretch. Of each kind, so many `steps` are timed, and half
        as many again are not.

        Raises:
            PlanError: `steps` is under 10, or the loader has too few batches.
        """
        return measure_headroom(loader, step, steps=steps, clock=self._meter.clock)

    def close(self) -> None:
        """End the thread that queries the GPU, and write a trace that has begun."""
        self._meter.close()


class Monitored(Generic[T]):
    """A loader whose batches are timed, with its length and attributes; see `Monitor`."""

    def __init__(self, meter: LoopMeter, loader: Iterable[T]) -> None:
        self._meter = meter
        self._loader = loader

    def __iter__(self) -> Iterator[T]:
        meter = self._meter
        begun = meter.clock()
        number = meter.begin_pass(self._loader)
        batches = iter(self._loader)
        return _Pass(meter, batches, number, meter.clock() - begun)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        # Without this, a copy that has no loader yet would look it up without end.
        if name.startswith("__") or name in ("_meter", "_loader"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Pass(Iterator[T]):
    def __init__(self, meter: LoopMeter, batches: Iterator[T], number: int, earlier: int) -> None:
        self._batches = batches
        self._number = number
        self._earlier: int | None = earlier  # ns that making the iterator took, until it is used
        self._meter = meter

    def __next__(self) -> T:
        meter = self._meter
        if not meter.ask(self._number, self._earlier):
            return next(self._batches)
        self._earlier = None
        try:
            batch = next(self._batches)
        except BaseException:
            meter.stopped()
            raise
        meter.got(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)  # such as `close`

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # The only sign of a loop that was left by a break or an error.
        if "_meter" in self.__dict__ and not ends():
            self._meter.left(self._number)


class PartMark:
    """Context manager around a part of a turn; may be entered again, and inside of another."""

    def __init__(self, meter: LoopMeter, part: int) -> None:
        self._meter = meter
        self._part = part

    def __enter__(self) -> None:
        self._meter.enter(self._part)

    def __exit__(self, kind: object, *_: object) -> None:
        self._meter.leave(self._part, failed=kind is not None)
