"""Time of each turn of a training loop, by its parts.

A turn begins when a batch is asked for and ends when the next one is. It consists of waiting for
the batch, transfers, steps, and the rest. The first turn of a pass over the loader, which starts
workers, and the turns of the warm-up are counted apart.

Right after a training step the processor's caches are empty, and Python takes ten times as long as
usual. So the loop only appends times to a list, and `replay` adds them up some dozens of turns
later, at a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from datapipe.monitor.durations import Durations, Timeline

Reason = Literal["first", "warm-up", "probed", "traced", "disturbed"]
"""Reason why a turn is left out of the figures, see `LoopReport.left_out`."""

ASK, GOT, ENTER, LEAVE = 0, 1, 2, 4
"""Events of a turn, noted as `moment << BITS | event`; `ENTER` and `LEAVE` plus the part."""
BITS = 3

STEP, TRANSFER = 0, 1
"""Parts of a turn that the loop marks."""
PARTS = ("step", "transfer")


class MarkedPart:
    """Steps or transfers of a loop, in nanoseconds."""

    def __init__(self) -> None:
        self.each = Durations()  # of turns that count
        self.total = 0  # likewise
        self.depth = 0
        self.since = 0
        self.took = 0  # in this turn
        self._times: list[int] = []

    def enter(self, now: int) -> None:
        self.depth += 1
        if self.depth == 1:
            self.since = now

    def note(self, took: int) -> None:
        self.took += took
        self._times.append(took)

    def count(self) -> None:
        """Count the times noted in this turn."""
        self.total += self.took
        for took in self._times:
            self.each.add(took)

    def forget(self) -> None:
        """Drop the times noted in this turn."""
        self.took = 0
        self._times.clear()


class LoopClock:
    """Sums over turns. For the thread that runs the loop; moments are nanoseconds of one clock.

    Args:
        warmup: turns at the start that do not count.
    """

    def __init__(self, warmup: int) -> None:
        self.waits = Durations()
        self.firsts = Durations()  # waits for the first batch of each pass
        self.parts = self.steps, self.transfers = MarkedPart(), MarkedPart()
        self.wait = self.rest = 0  # ns, of turns that count
        self.turns = 0  # that count
        self.begun = 0  # all of them
        self.warm_up = 0  # ns
        self.left_out: dict[str, int] = {}
        self.timeline = Timeline()
        self._warmup = warmup
        self._pass: int | None = None  # whose turn it is
        self._reason: Reason | None = None
        self.asked = self._got = self._last = 0
        self._carried = 0  # in transfers within the step that is open

    @property
    def total(self) -> int:
        """Nanoseconds of the turns that count."""
        return self.wait + self.steps.total + self.transfers.total + self.rest

    @property
    def waited(self) -> float:
        """Seconds that the open turn waited for its batch."""
        return (self._got - self.asked) / 1e9

    @property
    def counts(self) -> bool:
        """True if there is no reason so far to leave out the open turn."""
        return self._reason is None

    def replay(self, moments: Iterable[int]) -> None:
        """Add up the noted times of turns that count, all of one pass."""
        for moment in moments:
            event, now = moment & ((1 << BITS) - 1), moment >> BITS
            if event == ASK:
                if self._pass is not None:
                    self.ask(self._pass, now, first=False)
            elif event == GOT:
                self.got(now)
            elif event >= LEAVE:
                self.leave(event - LEAVE, now)
            else:
                self.enter(event - ENTER, now)

    def ask(self, number: int, now: int, *, first: bool, earlier: int = 0) -> None:
        """Begin a turn, and end the one before: a batch is asked for."""
        self.end(number, now)
        if self._pass is not None:
            # Another loop ran inside of this turn, or this one was left by a break.
            self.flush()
            if not first:
                self._reason = "disturbed"
        self._pass = number
        self.asked = now - earlier
        # A step that is still open surrounds the loop.
        self._got = self.steps.depth = self.transfers.depth = 0
        if first:
            self._reason = "first"

    def end(self, number: int, now: int) -> None:
        """End the turn that is open, if it belongs to that pass."""
        if self._pass == number:
            self._end(now)

    def got(self, now: int) -> None:
        """Note that the batch was received."""
        self._got = self._last = now
        self.begun += 1
        if self._reason is None and self.begun <= self._warmup:
            self._reason = "warm-up"

    def stop(self) -> None:
        """Forget the turn: there was no batch, as the pass is over or failed."""
        self._pass = self._reason = None
        self._got = 0
        for part in self.parts:
            part.forget()

    def flush(self) -> None:
        """Count the open turn up to the end of its last part."""
        open_part = self.steps.depth or self.transfers.depth
        if self._pass is not None and self._got and not open_part:
            self._end(self._last)
        self.stop()

    def leave_out(self, reason: Reason) -> None:
        """Leave the open turn out of the figures."""
        if self._reason is None:
            self._reason = reason

    def enter(self, part: int, now: int) -> None:
        """Begin a part; a step inside of a step belongs to it, likewise a transfer."""
        self.parts[part].enter(now)
        if part == STEP and self.steps.depth == 1:
            self._carried = 0

    def leave(self, part: int, now: int) -> None:
        """End a part; a transfer inside of a step is no part of the step."""
        mark = self.parts[part]
        if not mark.depth:
            return
        mark.depth -= 1
        if mark.depth or not self._got:
            return
        took = now - mark.since
        if part == STEP:
            took -= self._carried
        elif self.steps.depth:
            self._carried += took
        mark.note(took)
        self._last = now

    def _end(self, now: int) -> None:
        reason = self._reason
        wait = self._got - self.asked
        if reason is None:
            step, transfer = self.steps.took, self.transfers.took
            rest = now - self._got - step - transfer
            self.turns += 1
            self.wait += wait
            self.rest += rest
            self.waits.add(wait)
            for part in self.parts:
                part.count()
            self.timeline.add(self.begun, wait, transfer, step, rest)
        else:
            self.left_out[reason] = self.left_out.get(reason, 0) + 1
            if reason == "first":
                self.firsts.add(wait)
            elif reason == "warm-up":
                self.warm_up += now - self.asked
        self.stop()
