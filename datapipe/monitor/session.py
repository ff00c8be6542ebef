"""Meter of a training loop: its clock, probe, device times and trace together."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from threading import get_ident
from types import ModuleType
from typing import Any

from datapipe.diagnosis.loop_rules import WAIT_LIMIT, judge_waiting
from datapipe.errors import PlanError
from datapipe.monitor.datasets import DatasetCounter
from datapipe.monitor.device_time import DeviceTimes, current_device
from datapipe.monitor.gpu import GpuSampler, find_gpu
from datapipe.monitor.loop_timer import PARTS, LoopClock
from datapipe.monitor.report import Counted, LoopLoader
from datapipe.monitor.syncs import Probe
from datapipe.monitor.trace import FLAG, LoopTrace, Ranges, TraceOrder

logger = logging.getLogger(__name__)

MOST_NOTED = 384
"""Noted times, of some 64 turns; adding them up takes a quarter of a millisecond."""
_LOOK_AGAIN = 10  # turns until the next attempt, if a probe was not possible
_FIRST_CHECK = 20  # turns, after which the log may warn; then at twice as many, and so on
_LEAST_TIME = 1.0  # seconds of these turns, at least


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """Options of a `Monitor`."""

    warmup: int
    probe: bool
    gpu: bool
    meter: bool
    ranges: bool


class LoopMeter:
    """Receiver of all events of a monitored loop, in their order.

    Args:
        options: of the monitor.
        clock: returns nanoseconds.

    Attributes:
        plain: whether only the times of this turn have to be noted: it counts, and is neither
            probed nor traced. Then `monitor.py` appends to `noted` itself, as calls are expensive
            right after a step.
        noted: times of plain turns, as `LoopClock.replay` takes them.
        device: receives steps and transfers.
        datasets: receives batches of mixtures.
        number: of the pass whose turn it is; None between passes.
        thread: that runs the loop.
        begun: turns so far, those noted included.
        look_at: number of turns from which on `look` is to be called.
        profiler: torch's module that has `FLAG`, if the loop has imported torch.
    """

    def __init__(self, options: MonitorOptions, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._options = options
        self._loop = loop = LoopClock(options.warmup)
        self._probe = Probe(
            clock,
            in_step=lambda: loop.steps.depth > 0,
            in_transfer=lambda: loop.transfers.depth > 0,
            waited=lambda: loop.waited,
        )
        self.device: DeviceTimes | None = None
        self._sampler: GpuSampler | None = None
        self._equipped = False
        self._source = LoopLoader()
        self.datasets = DatasetCounter()
        self._ranges = Ranges()
        self._shows = False  # whether this turn has ranges
        self._order: TraceOrder | None = None
        self._trace: LoopTrace | None = None
        self._until = 0  # turn at which the trace begins, or ends
        self.plain = False
        self.noted: list[int] = []
        self.begun = 0
        self.look_at: float = options.warmup + self._probe.next if options.probe else inf
        self.number: int | None = None
        self.profiler: ModuleType | None = None
        self._passes = 0
        self._asked = 0
        self.thread = 0
        self._check = _FIRST_CHECK
        self._warned = self._warned_of_thread = False

    def counted(self) -> Counted:
        """Return the counters; in another thread, those of some dozens of turns ago."""
        if self.mine():
            self._add_up()
            self.datasets.read()
            if self.number is None:
                self._finish_trace()
        return self._counted()

    def order(self, order: TraceOrder) -> None:
        """Order a trace.

        Raises:
            PlanError: one is being made.
        """
        if self._order is not None:
            raise PlanError(
                f"the trace {self._order.path} is not finished; one monitor makes one at a time"
            )
        self._order = order
        self._until = self.begun + order.start
        self.look_at = min(self.look_at, self._until)
        self.plain = self.plain and self.begun < self._until

    def close(self) -> None:
        """End the pass, the trace and the thread that samples the GPU."""
        if self.number is not None:
            self.left(self.number)
        self._finish_trace()
        if self._sampler is not None:
            self._sampler.close()

    def mine(self) -> bool:
        """Check that this thread runs the measured loop, or that there is none yet."""
        thread = get_ident()
        if thread == self.thread:
            return True
        if self.number is not None:
            return False
        self.thread = thread
        return True

    def begin_pass(self, loader: Any) -> int:
        """Begin a pass over a loader; return its number."""
        self._passes += 1
        self.profiler = sys.modules.get("torch.autograd.profiler")
        self._source.begin(
            loader,
            meter=self._options.meter,
            events=self._order is not None,
            ranges=self._options.ranges,
        )
        self.datasets.begin(loader)
        return self._passes

    def ask(self, number: int, earlier: int | None) -> bool:
        """Begin a turn of a pass, and end the one before: a batch is asked for.

        `earlier` are ns spent before on the first batch of the pass; None for all others. Return
        False, without measuring, in another thread than the loop's.
        """
        if not self._may_measure():
            return False
        now = self.clock()
        self._probe.end(counts=self.number == number)
        if self.device is not None:
            self.device.end_turn(self.plain)
        self._add_up()
        self.datasets.read()  # not in a probed turn, whose calls are timed
        self._loop.end(number, now)
        self._warn_of_waiting()
        self._turn_trace()
        self.plain, self.number = False, number
        profiled = getattr(self.profiler, FLAG, False)
        self._shows = self._options.ranges or self._trace is not None or profiled
        self._ranges.close()
        if self._shows:
            self._ranges.push("datapipe.wait")
        self._asked = self.clock()
        self._loop.ask(number, self._asked, first=earlier is not None, earlier=earlier or 0)
        return True

    def got(self) -> None:
        """Note that the batch was received."""
        loop = self._loop
        now = self.clock()
        self._add_up()
        self.begun += 1
        loop.got(now)
        if self._shows:
            self._ranges.pop()
        if self._trace is not None:
            loop.leave_out("traced")
            self._trace.add("datapipe.wait", self._asked, now)
        if self.begun <= self._options.warmup:
            return
        if not self._equipped:
            self._equip()
        if self._sampler is not None:
            self._sampler.count(True)
        self.plain = loop.counts and not self._shows
        if self.plain and self.begun >= self.look_at:
            self.look()

    def look(self) -> None:
        """Begin a probe of this turn, or prepare for the trace after it, if they are due."""
        warmup = self._options.warmup
        again: float = inf
        if self._order is not None:
            again = self._until
            if self.begun >= self._until:
                self.plain = False
        if self._options.probe:
            if self.plain and self.begun - warmup >= self._probe.next:
                self._add_up()
                if self._probe.begin(self.begun - warmup, self._loop.asked):
                    self.plain = False
                    self._loop.leave_out("probed")
            # If another monitor probes, not in each turn.
            again = min(again, max(warmup + self._probe.next, self.begun + _LOOK_AGAIN))
        self.look_at = again

    def stopped(self) -> None:
        """End the pass: there was no batch, or an error."""
        self._add_up()
        self._loop.stop()
        self._warn_of_waiting()
        self._rest()
        self._finish_trace()

    def left(self, number: int) -> None:
        """End a pass that the loop has left."""
        if self.number == number:
            self._probe.end(counts=False)
            if self.device is not None:
                self.device.end_turn(self.plain)
            self._add_up()
            self._loop.flush()
            self._rest()

    # Of the parts of a turn that is not plain.

    def enter(self, part: int) -> None:
        """Begin a step or a transfer."""
        if self._may_measure():
            self._add_up()
            if self._shows:
                self._ranges.push(f"datapipe.{PARTS[part]}")
            if self.device is not None and self.number is not None:
                self.device.enter(part)
            self._loop.enter(part, self.clock())

    def leave(self, part: int, *, failed: bool) -> None:
        """End a step or a transfer; `failed` by an exception."""
        if not self._may_measure():
            return
        loop, now = self._loop, self.clock()
        self._add_up()
        loop.leave(part, now)
        if self.device is not None and self.number is not None:
            self.device.leave(part)
        mark = loop.parts[part]
        if self._trace is not None and not mark.depth:
            self._trace.add(f"datapipe.{PARTS[part]}", mark.since, now)
        if self._shows:
            self._ranges.pop()
        if failed:
            self.plain = False
            loop.leave_out("disturbed")
            self._probe.end(counts=False)

    def _may_measure(self) -> bool:
        if self.mine():
            return True
        if not self._warned_of_thread:
            self._warned_of_thread = True
            logger.warning(
                "a monitor is used by two threads at a time, and measures the first; give each "
                "loop a Monitor of its own"
            )
        return False

    def _add_up(self) -> None:
        """Add up the noted times."""
        noted, self.noted = self.noted, []
        self._loop.replay(noted)
        if self.device is not None:
            self.device.read()

    def _counted(self) -> Counted:
        return Counted(
            self._loop, self._probe, self._source, self.device, self._sampler, self.datasets
        )

    def _warn_of_waiting(self) -> None:
        """Warn once if the loop waits too much, judged by the turns so far."""
        loop = self._loop
        if self._warned or loop.turns < self._check or loop.total / 1e9 < _LEAST_TIME:
            return
        self._check = 2 * loop.turns
        counted = self._counted()
        figures = counted.figures(counted.sampled(thoroughly=False))
        if figures.waiting > WAIT_LIMIT:
            self._warned = True
            verdict = judge_waiting(figures)
            action = f"; {verdict.actions[0]}" if verdict.actions else ""
            logger.warning("%s%s", verdict.sentence, action)

    def _equip(self) -> None:
        """Find the GPU after the warm-up, when the loop uses it if it ever does."""
        self._equipped = True
        self._source.settle()
        device = current_device()
        if device is not None:
            self.device = DeviceTimes(device)
        gpu = find_gpu() if self._options.gpu else None
        if gpu is not None:
            self._sampler = GpuSampler(gpu)

    def _rest(self) -> None:
        """Pause between passes."""
        self.plain, self.number = False, None
        self._ranges.close()
        if self._sampler is not None:
            self._sampler.count(False)

    def _turn_trace(self) -> None:
        """Begin or finish the trace before the next turn."""
        order = self._order
        if order is None or self.begun < self._until:
            return
        if self._trace is None:
            self._trace = LoopTrace(order.path, self.clock)
            self._until = self.begun + order.count
        else:
            self._finish_trace()

    def _finish_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            self._order = None
            trace.finish(self._source.events())
