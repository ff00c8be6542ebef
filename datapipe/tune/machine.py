"""Clock and meters of the machine that trials run on."""

from __future__ import annotations

import time
from typing import Protocol

from datapipe.diagnosis.loader_figures import Usage
from datapipe.profile.measure.usage import UsageMeter


class Meter(Protocol):
    """Meter of what a trial takes of its machine."""

    @property
    def memory(self) -> int:
        """Most bytes of all processes so far."""

    def start(self) -> None:
        """Begin."""

    def mark(self) -> None:
        """Count from now on; the peak of memory stays."""

    def stop(self) -> Usage:
        """End, and return the usage; later calls return the same."""


class Machine(Protocol):
    """A machine that trials run on."""

    def clock(self) -> float:
        """Return the time in seconds."""

    def sleep(self, seconds: float) -> None:
        """Spend time."""

    def meter(self, *, probe_gil: bool) -> Meter | None:
        """Make the meter of one trial; None if nothing can be metered."""


class ThisMachine:
    """The machine that the program runs on."""

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def meter(self, *, probe_gil: bool) -> Meter:
        """Make a meter of memory and CPU time, and of the interpreter's lock if asked to."""
        return UsageMeter(probe_gil=probe_gil)
