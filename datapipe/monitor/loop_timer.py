"""Time of each turn of a training loop, by its parts.

A turn begins when a batch is asked for and ends when the next one is. It consists of waiting for
the batch, transfers, steps, and the rest. Turns that do not count, such as the first of a pass over
the loader, which starts workers, are counted apart.

Right after a training step the processor's caches are empty, and Python takes ten times as long as
usual. So the loop only appends events to a list, and `replay` adds them up some dozens of turns
later, at a tenth of the cost.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from datapipe.monitor.durations import Durations, Timeline

Reason = Literal["first", "warm-up", "recorded", "traced", "disturbed"]
"""Reason why a turn is left out of the figures, see `LoopReport.left_out`."""

BEGIN, GOT, ENTER, LEAVE, END, CUT, DROP = range(7)
"""Events of a turn. `ENTER` and `LEAVE` have a part, `END` and `CUT` the reason for which the turn
does not count. `CUT` ends a turn with its last part, `DROP` forgets it."""

Event = tuple[int, int, Any]
"""Event, its moment in nanoseconds, and what belongs to it."""

STEP, TRANSFER = 0, 1
"""Parts of a turn that the loop marks."""
PARTS = ("step", "transfer")
_SELDOM = 3  # turns with the longest rest, which alone decide nothing


class TurnParts:
    """Durations of the steps and transfers of one turn, and of the rest, in nanoseconds.

    A transfer inside of a step is no part of it, and a step inside of a step belongs to that one.
    """

    def __init__(self) -> None:
        self.times: tuple[list[int], list[int]] = ([], [])
        self.rest = 0
        self._depths = [0, 0]
        self._open = [0, 0]

    @property
    def is_open(self) -> bool:
        return any(self._depths)

    def spend(self, took: int) -> None:
        """Add the time since the event before to the part that is open."""
        if self._depths[TRANSFER]:
            self._open[TRANSFER] += took
        elif self._depths[STEP]:
            self._open[STEP] += took
        else:
            self.rest += took

    def enter(self, part: int) -> None:
        self._depths[part] += 1

    def leave(self, part: int) -> None:
        """End a part, unless it began before the turn."""
        if self._depths[part]:
            self._depths[part] -= 1
            if not self._depths[part]:
                self.times[part].append(self._open[part])
                self._open[part] = 0


class LoopClock:
    """Sums over turns that count, in nanoseconds. For the thread that runs the loop."""

    def __init__(self) -> None:
        self.waits, self.firsts = Durations(), Durations()  # firsts: of each pass
        self.parts = self.steps, self.transfers = Durations(), Durations()
        self.rest = 0
        self.longest_rests = [0] * _SELDOM  # of single turns
        self.left_out: Counter[str] = Counter()  # number of turns by reason
        self.timeline = Timeline()
        self._begun = 0
        self._before = 0  # moment of the last event
        self._turn: TurnParts | None = None  # from its batch on
        self._wait = 0

    @property
    def turns(self) -> int:
        return self.waits.count

    @property
    def total(self) -> int:
        return self.waits.total + self.steps.total + self.transfers.total + self.rest

    @property
    def seldom(self) -> int:
        """Nanoseconds of `rest` that three turns alone spent beyond what others do.

        A checkpoint or a trace that is written once says nothing of a loop.
        """
        longest = sum(self.longest_rests)
        others = max(self.turns - _SELDOM, 1)
        return max(0, longest - _SELDOM * (self.rest - longest) // others)

    def shares(self, seldom: int = 0) -> dict[str, float]:
        """Return the shares of the wait, transfer, step and rest of a turn, by these names.

        So many ns of rare work, outside of the steps, are left out.
        """
        total = max(self.total - seldom, 1)
        parts = {"wait": self.waits, "transfer": self.transfers, "step": self.steps}
        shares = {name: durations.total / total for name, durations in parts.items()}
        return shares | {"rest": (self.rest - seldom) / total}

    def replay(self, events: Iterable[Event]) -> None:
        for event, now, value in events:
            took, self._before = now - self._before, now
            turn = self._turn
            if event == GOT:
                self._turn, self._wait = TurnParts(), took
                self._begun += 1
            elif turn is not None:
                if event == CUT:
                    if not turn.is_open:
                        self._count(turn, value)
                    self._turn = None
                    continue
                turn.spend(took)
                if event == ENTER:
                    turn.enter(value)
                elif event == LEAVE:
                    turn.leave(value)
                else:
                    if event == END:
                        self._count(turn, value)
                    self._turn = None

    def _count(self, turn: TurnParts, reason: Reason | None) -> None:
        steps, transfers = map(sum, turn.times)
        if reason is not None:
            self.left_out[reason] += 1
            if reason == "first":
                self.firsts.add(self._wait)
            return
        self.rest += turn.rest
        heapq.heappushpop(self.longest_rests, turn.rest)
        self.waits.add(self._wait)
        for durations, times in zip(self.parts, turn.times, strict=True):
            for took in times:
                durations.add(took)
        self.timeline.add(self._begun, self._wait, transfers, steps, turn.rest)
