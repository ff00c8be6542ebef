"""Meter of a training loop: its clock, recorder, device times and trace together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from threading import get_ident
from typing import Any

from datapipe.diagnosis.loop_rules import LIMITS, judge_waiting
from datapipe.errors import PlanError
from datapipe.monitor import loop_timer
from datapipe.monitor.gpu import DeviceTimes, GpuSampler, find_gpu, used_cuda
from datapipe.monitor.loop_timer import PARTS, STEP, Event, Reason
from datapipe.monitor.profiler import Ranges, profiled
from datapipe.monitor.report import Counters
from datapipe.monitor.trace import LoopTrace

logger = logging.getLogger(__name__)

FIRST_RECORDED = (3, 18, 83)
"""Turns after the warm-up that torch's profiler records."""
RECORDED_EVERY = 4000
"""Turns from one recorded turn to the next, after the first three."""
_MOST_RECORDED = 64  # turns in a recording, of a loop that steps once in several batches
_MOST_NOTED = 384  # events, of some 64 turns; adding them up takes a quarter of a millisecond
_FIRST_CHECK = 20  # turns, after which the log may warn; then at twice as many, and so on
_LEAST_TIME = 1.0  # seconds of these turns, at least


class LoopMeter:
    """Receiver of all events of a monitored loop, in their order; options are the `Monitor`'s."""

    def __init__(
        self, *, warmup: int, gpu: bool, meter: bool, ranges: bool, clock: Callable[[], int]
    ) -> None:
        self.clock = clock  # nanoseconds
        self._warmup, self._gpu, self._meters, self._has_ranges = warmup, gpu, meter, ranges
        self._counters = Counters()
        # They end in 3 or 8, so that work of every 10th or 25th turn is in none of them.
        self._due = [warmup + -warmup % 5 + number for number in FIRST_RECORDED]
        self._look_at = 1  # turn in which `_look` is called
        self._ranges = Ranges()
        self._shows = False  # whether this turn has ranges
        self._trace: LoopTrace | None = None
        self._trace_at = inf  # turns after which the trace begins, or ends
        self._noted: list[Event] = []
        self._begun = self._passes = self._asked = 0  # turns, passes, time of this turn
        self._steps_open = 0  # steps of this turn, one inside of another
        self._reason: Reason | None = None  # for which this turn does not count
        self._number: int | None = None  # of the pass whose turn it is; None between passes
        self._thread = 0  # that runs the loop
        self._check = _FIRST_CHECK
        self._equipped = self._marks_steps = self._warned = self._warned_of_thread = False

    def counters(self) -> Counters:
        """Return the counters; in another thread, those of some dozens of turns ago."""
        if self._mine():
            self._add_up()
            if self._number is None:
                self._finish_trace()
        return self._counters

    def order(self, trace: LoopTrace) -> None:
        """Order a trace; raise `PlanError` while one is being made."""
        if self._trace is not None:
            raise PlanError(
                f"the trace {self._trace.path} is not finished; one monitor makes one at a time"
            )
        self._trace = trace
        self._trace_at = self._begun + trace.start

    def close(self) -> None:
        """End the pass, the trace and the thread that samples the GPU."""
        if self._number is not None:
            self.left(self._number)
        self._finish_trace()
        if self._counters.sampler is not None:
            self._counters.sampler.end()

    def begin_pass(self, loader: Any) -> int:
        """Begin a pass over a loader; return its number."""
        self._passes += 1
        traced, counters = self._trace is not None, self._counters
        counters.loader.begin(loader, meter=self._meters, events=traced, ranges=self._has_ranges)
        counters.datasets.begin(loader)
        return self._passes

    def ask(self, number: int, earlier: int | None) -> bool:
        """Begin a turn of a pass; return False, without measuring, in another thread.

        `earlier` are ns spent before on the first batch of the pass; None for all others.
        """
        if not self._is_measured():
            return False
        self._end_turn(loop_timer.END if number == self._number else loop_timer.CUT)
        if self._begun >= self._trace_at:
            self._finish_trace()
            if self._trace is not None:
                self._add_up()
                self._counters.recorder.end(counts=False)  # torch has one profiler at a time
                self._trace.begin()
                self._trace_at = self._begun + self._trace.count
                self._look_at = self._begun + 1
        self._reason = None
        self._steps_open = 0
        if number != self._number:
            # Another loop ran inside of this turn, or this is the first one of its pass.
            self._number = number
            self._reason = "disturbed" if earlier is None else "first"
            self._look_at = self._begun + 1
        self._shows = self._has_ranges or profiled()
        if self._shows:
            self._ranges.push("datapipe.wait")
        self._asked = self.clock() - (earlier or 0)
        self._noted.append((loop_timer.BEGIN, self._asked, None))
        return True

    def got(self, batch: object) -> None:
        now = self.clock()
        self._noted.append((loop_timer.GOT, now, None))
        self._begun += 1
        if self._shows:
            self._ranges.pop()
        if self._counters.datasets.counts:
            self._counters.datasets.add(batch)
        if self._begun >= self._look_at:
            self._look(now)

    def stopped(self) -> None:
        """End the pass: there was no batch, or an error."""
        self._noted.append((loop_timer.DROP, self.clock(), None))
        self._rest()
        self._finish_trace()

    def left(self, number: int) -> None:
        if self._number == number:
            self._end_turn(loop_timer.CUT)
            self._rest()

    def enter(self, part: int) -> None:
        if self._number is None or not self._is_measured():
            return
        if len(self._noted) >= 2 * _MOST_NOTED:  # in a turn of a thousand steps
            self._add_up()
        if self._shows:
            self._ranges.push(f"datapipe.{PARTS[part]}")
        if self._counters.device is not None:
            self._counters.device.note(loop_timer.ENTER, part)
        self._steps_open += part == STEP
        self._noted.append((loop_timer.ENTER, self.clock(), part))

    def leave(self, part: int, *, failed: bool) -> None:
        """End a step or a transfer; `failed` by an exception."""
        now = self.clock()
        if self._number is None or not self._is_measured():
            return
        self._noted.append((loop_timer.LEAVE, now, part))
        if self._counters.device is not None:
            self._counters.device.note(loop_timer.LEAVE, part)
        if self._shows:
            self._ranges.pop()
        if failed:
            self._reason = self._reason or "disturbed"
        if part == STEP:
            self._steps_open = max(self._steps_open - 1, 0)
            if not self._steps_open:
                self._marks_steps = True
                # What the loop does after its step, such as an evaluation, is not recorded.
                self._counters.recorder.end(counts=not failed)

    def _end_turn(self, event: int) -> None:
        if self._number is None:
            return
        self._noted.append((event, self.clock(), self._reason))
        recorder, device = self._counters.recorder, self._counters.device
        if device is not None:
            device.end_turn(self._reason is None)
        if self._shows:
            self._ranges.close()
        if self._reason is None and len(self._noted) < _MOST_NOTED:
            return
        if recorder.runs:
            long = self._begun - recorder.turn >= _MOST_RECORDED
            if event == loop_timer.CUT or long or not self._marks_steps:
                recorder.end(counts=event == loop_timer.END and not long)
        self._add_up()

    def _look(self, now: int) -> None:
        """Find out whether this turn counts; record it, if it is due."""
        recorder = self._counters.recorder
        self._look_at = self._begun + 1
        if self._begun <= self._warmup:
            self._reason = self._reason or "warm-up"
            return
        self._equip()
        if self._trace is not None and self._trace.runs:
            self._reason = self._reason or "traced"
        elif recorder.runs:
            self._reason = self._reason or "recorded"
        elif self._reason is not None:
            return
        elif self._begun >= self._due[0] and (self._begun - self._due[0]) % 5 == 0:
            due = self._due.pop(0)
            if not self._due:
                self._due.append(due + RECORDED_EVERY)
            if recorder.begin(turn=self._begun, waited=(now - self._asked) / 1e9):
                self._reason = "recorded"
        else:
            self._look_at = max(self._look_at, self._due[0])

    def _mine(self) -> bool:
        if self._number is None:
            self._thread = get_ident()
        return self._thread == get_ident()

    def _is_measured(self) -> bool:
        mine = self._mine()
        if not mine and not self._warned_of_thread:
            self._warned_of_thread = True
            logger.warning(
                "two threads use one monitor, which measures the first of them; give each loop "
                "its own Monitor"
            )
        return mine

    def _add_up(self) -> None:
        """Add up the noted events, and warn once if the loop waits too much."""
        noted, self._noted = self._noted, []
        self._counters.replay(noted)
        if self._trace is not None and self._trace.runs:
            self._trace.add(noted)
        loop = self._counters.loop
        if self._warned or loop.turns < self._check or loop.total / 1e9 < _LEAST_TIME:
            return
        self._check = 2 * loop.turns
        figures = self._counters.figures(thoroughly=False)
        if figures.waiting > LIMITS["data"]:
            self._warned = True
            verdict = judge_waiting(figures)
            logger.warning("%s", "; ".join([verdict.sentence, *verdict.actions[:1]]))

    def _equip(self) -> None:
        """Find the GPU after the warm-up, when the loop uses it if it ever does."""
        if not self._equipped:
            self._equipped = True
            self._counters.loader.settle()
            if (cuda := used_cuda()) is not None:
                self._counters.device = DeviceTimes(cuda)
            if self._gpu and (gpu := find_gpu()) is not None:
                self._counters.sampler = GpuSampler(gpu)
                self._counters.sampler.begin(self)
        if self._counters.sampler is not None:
            self._counters.sampler.counts = True

    def _rest(self) -> None:
        self._number = None
        self._counters.recorder.end(counts=False)
        self._ranges.close()
        if self._counters.sampler is not None:
            self._counters.sampler.counts = False
        self._add_up()

    def _finish_trace(self) -> None:
        trace = self._trace
        if trace is not None and trace.runs:
            self._add_up()
            self._trace, self._trace_at = None, inf
            trace.finish(self._counters.loader.events())
