"""Meter of a training loop: its clock, recorder, probe, device times and trace together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from threading import get_ident
from typing import Any

from datapipe.diagnosis.loop_rules import WAIT_LIMIT, judge_waiting
from datapipe.errors import PlanError
from datapipe.monitor.datasets import DatasetCounter
from datapipe.monitor.device_time import DeviceTimes, current_device
from datapipe.monitor.gpu import GpuSampler, find_gpu
from datapipe.monitor.loop_timer import (
    BEGIN,
    CUT,
    DROP,
    END,
    ENTER,
    GOT,
    LEAVE,
    PARTS,
    STEP,
    Event,
    LoopClock,
    Reason,
)
from datapipe.monitor.recorder import StepRecorder
from datapipe.monitor.report import Counted, LoopLoader
from datapipe.monitor.trace import LoopTrace, Ranges, TraceOrder, profiled
from datapipe.monitor.waits import WaitProbe

logger = logging.getLogger(__name__)

RECORDED = (8, 23, 83), 4000
"""Turns after the warm-up that torch's profiler records, and how many lie between later ones."""
PROBED = (9, 24, 84), 500
"""Turns after the warm-up that are probed, likewise."""
_MOST_RECORDED = 64  # turns in a recording, of a loop that steps once in several batches
_MOST_NOTED = 384  # events, of some 64 turns; adding them up takes a quarter of a millisecond
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


class TurnSchedule:
    """Numbers of the turns in which something is measured that takes too long for every turn.

    They end in 3 or 8, or in 4 or 9 for the other schedule, so that work of every 10th or 25th turn
    is in none of them.

    Args:
        after: turns after the warm-up, ascending.
        every: turns between later ones.
        warmup: turns.

    Attributes:
        next: number of the next such turn.
    """

    def __init__(self, after: tuple[int, ...], every: int, warmup: int) -> None:
        self._turns = [warmup + -warmup % 5 + turn for turn in after]
        self._every = every
        self.next = self._turns.pop(0)

    def due(self, turn: int) -> bool:
        """Check whether a turn is due, and proceed to the next one if it is."""
        if turn < self.next:
            return False
        self.next = self._turns.pop(0) if self._turns else self.next + self._every
        return True


class LoopMeter:
    """Receiver of all events of a monitored loop, in their order.

    Args:
        options: of the monitor.
        clock: returns nanoseconds.
    """

    def __init__(self, options: MonitorOptions, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._options = options
        self._loop = LoopClock()
        self._recorder, self._probe = StepRecorder(), WaitProbe(clock, self._where)
        self._recorded = TurnSchedule(*RECORDED, options.warmup)
        self._probed = TurnSchedule(*PROBED, options.warmup) if options.probe else None
        self._device: DeviceTimes | None = None
        self._sampler: GpuSampler | None = None
        self._source = LoopLoader()
        self._datasets = DatasetCounter()
        self._ranges = Ranges()
        self._shows = False  # whether this turn has ranges
        self._order: TraceOrder | None = None
        self._trace: LoopTrace | None = None
        self._trace_at = inf  # turns after which the trace begins, or ends
        self._noted: list[Event] = []
        self._begun = 0  # turns
        self._look_at = options.warmup + 1  # turn in which `_look` is called
        self._equipped = False
        self._marks_steps = False
        self._open: list[int] = []  # parts of this turn
        self._reason: Reason | None = None  # for which this turn does not count
        self._number: int | None = None  # of the pass whose turn it is; None between passes
        self._passes = 0
        self._asked = 0
        self._thread = 0  # that runs the loop
        self._check = _FIRST_CHECK
        self._warned = self._warned_of_thread = False

    def counted(self) -> Counted:
        """Return the counters; in another thread, those of some dozens of turns ago."""
        if self._mine():
            self._add_up()
            if self._number is None:
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
        self._trace_at = self._begun + order.start

    def close(self) -> None:
        """End the pass, the trace and the thread that samples the GPU."""
        if self._number is not None:
            self.left(self._number)
        self._finish_trace()
        if self._sampler is not None:
            self._sampler.close()

    def begin_pass(self, loader: Any) -> int:
        """Begin a pass over a loader; return its number."""
        self._passes += 1
        self._source.begin(
            loader,
            meter=self._options.meter,
            events=self._order is not None,
            ranges=self._options.ranges,
        )
        self._datasets.begin(loader)
        return self._passes

    def ask(self, number: int, earlier: int | None) -> bool:
        """Begin a turn of a pass, and end the one before: a batch is asked for.

        `earlier` are ns spent before on the first batch of the pass; None for all others. Return
        False, without measuring, in another thread than the loop's.
        """
        if not self._may_measure():
            return False
        self._end_turn(END if number == self._number else CUT)
        if self._begun >= self._trace_at:
            self._turn_trace()
        self._reason = None
        self._open.clear()
        if number != self._number:
            # Another loop ran inside of this turn, or this is the first one of its pass.
            self._number = number
            self._reason = "disturbed" if earlier is None else "first"
        self._shows = self._options.ranges or self._trace is not None or profiled()
        if self._shows:
            self._ranges.push("datapipe.wait")
        self._asked = self.clock() - (earlier or 0)
        self._noted.append((BEGIN, self._asked, None))
        return True

    def got(self, batch: object) -> None:
        """Note that the batch was received."""
        now = self.clock()
        self._noted.append((GOT, now, None))
        self._begun += 1
        if self._shows:
            self._ranges.pop()
        if self._sampler is not None:
            self._sampler.count(True)
        if self._datasets.counts:
            self._datasets.add(batch)
        if self._begun <= self._options.warmup:
            self._leave_out("warm-up")
        elif self._trace is not None:
            self._leave_out("traced")
        elif self._recorder.runs:
            self._leave_out("recorded")
        elif self._begun >= self._look_at:
            self._look(now)

    def stopped(self) -> None:
        """End the pass: there was no batch, or an error."""
        self._noted.append((DROP, self.clock(), None))
        self._rest()
        self._finish_trace()

    def left(self, number: int) -> None:
        """End a pass that the loop has left."""
        if self._number == number:
            self._end_turn(CUT)
            self._rest()

    def enter(self, part: int) -> None:
        """Begin a step or a transfer."""
        if self._number is None or not self._may_measure():
            return
        if len(self._noted) >= 2 * _MOST_NOTED:  # in a turn of a thousand steps
            self._add_up()
        if self._shows:
            self._ranges.push(f"datapipe.{PARTS[part]}")
        if self._device is not None:
            self._device.enter(part)
        self._open.append(part)
        self._noted.append((ENTER, self.clock(), part))

    def leave(self, part: int, *, failed: bool) -> None:
        """End a step or a transfer; `failed` by an exception."""
        now = self.clock()
        if self._number is None or not self._may_measure():
            return
        self._noted.append((LEAVE, now, part))
        if self._device is not None:
            self._device.leave(part)
        if self._shows:
            self._ranges.pop()
        if failed:
            self._leave_out("disturbed")
        if self._open:
            self._open.pop()
        if part == STEP and STEP not in self._open:
            self._marks_steps = True
            # What the loop does after its step, such as an evaluation, is not recorded.
            self._recorder.end(counts=not failed)

    def _end_turn(self, event: int) -> None:
        """End the turn that is open, if any."""
        if self._number is None:
            return
        now = self.clock()
        self._noted.append((event, now, self._reason))
        if self._recorder.runs:
            long = self._begun - self._recorder.turn >= _MOST_RECORDED
            if event == CUT or long or not self._marks_steps:
                self._recorder.end(counts=event == END and not long)
        self._probe.end(counts=event == END and self._reason == "probed")
        self._ranges.close()
        if self._device is not None:
            self._device.end_turn(self._reason is None)
        if self._reason is not None or len(self._noted) >= _MOST_NOTED:
            self._add_up()

    def _look(self, now: int) -> None:
        """Record or probe this turn, if it is due."""
        self._equip()
        if self._reason is None:
            if self._recorded.due(self._begun):
                self._recorder.begin(turn=self._begun, waited=(now - self._asked) / 1e9)
                if self._recorder.runs:
                    self._leave_out("recorded")
            elif self._probed is not None and self._probed.due(self._begun):
                self._probe.begin(self._asked)
                if self._probe.looks:
                    self._leave_out("probed")
        self._look_at = self._recorded.next
        if self._probed is not None:
            self._look_at = min(self._look_at, self._probed.next)

    def _where(self) -> str:
        """Return the name of the part that the loop is in; "" outside of all."""
        return PARTS[self._open[-1]] if self._open else ""

    def _leave_out(self, reason: Reason) -> None:
        """Leave this turn out of the figures."""
        self._reason = self._reason or reason

    def _mine(self) -> bool:
        """Check that this thread runs the measured loop, or that there is none yet."""
        thread = get_ident()
        if thread != self._thread:
            if self._number is not None:
                return False
            self._thread = thread
        return True

    def _may_measure(self) -> bool:
        if self._mine():
            return True
        if not self._warned_of_thread:
            self._warned_of_thread = True
            logger.warning(
                "a monitor is used by two threads at a time, and measures the first; give each "
                "loop a Monitor of its own"
            )
        return False

    def _add_up(self) -> None:
        """Add up the noted events."""
        noted, self._noted = self._noted, []
        self._loop.replay(noted)
        if self._trace is not None:
            self._trace.add(noted)
        if self._device is not None:
            self._device.read()
        self._datasets.read()
        self._warn_of_waiting()

    def _counted(self) -> Counted:
        return Counted(
            self._loop,
            self._recorder,
            self._probe,
            self._source,
            self._device,
            self._sampler,
            self._datasets,
        )

    def _warn_of_waiting(self) -> None:
        """Warn once if the loop waits too much, judged by the turns so far."""
        loop = self._loop
        if self._warned or loop.turns < self._check or loop.total / 1e9 < _LEAST_TIME:
            return
        self._check = 2 * loop.turns
        figures = self._counted().figures(self._recorder.figures(thoroughly=False))
        if figures.waiting > WAIT_LIMIT:
            self._warned = True
            verdict = judge_waiting(figures)
            action = f"; {verdict.actions[0]}" if verdict.actions else ""
            logger.warning("%s%s", verdict.sentence, action)

    def _equip(self) -> None:
        """Find the GPU after the warm-up, when the loop uses it if it ever does."""
        if self._equipped:
            return
        self._equipped = True
        self._source.settle()
        device = current_device()
        if device is not None:
            self._device = DeviceTimes(device)
        gpu = find_gpu() if self._options.gpu else None
        if gpu is not None:
            self._sampler = GpuSampler(gpu)
            self._sampler.count(True)

    def _rest(self) -> None:
        """Pause between passes."""
        self._number = None
        self._recorder.end(counts=False)
        self._ranges.close()
        if self._sampler is not None:
            self._sampler.count(False)
        self._add_up()

    def _turn_trace(self) -> None:
        """Begin or finish the trace before the next turn."""
        if self._trace is not None:
            self._finish_trace()
        elif self._order is not None:
            self._add_up()
            self._trace = LoopTrace(self._order.path, self.clock)
            self._trace_at = self._begun + self._order.count

    def _finish_trace(self) -> None:
        if self._trace is not None:
            self._add_up()
            trace, self._trace, self._order = self._trace, None, None
            self._trace_at = inf
            trace.finish(self._source.events())
