"""Probe of the calls in a training loop that read a value from the device, and so wait for it.

`loss.item()` waits until the device has computed the loss, and leaves it without work afterwards.
In a few turns of the loop the probe enters a `TorchFunctionMode`, torch's own means of seeing the
calls of its functions, and notes the time of each call that waits and the line of its caller.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import Any

from datapipe.diagnosis.loop_figures import Blocked

_MOST_LINES = 200
_REMEMBERED = 31  # probes

# Functions that read a value from the device, and so wait for it.
_READS = frozenset(
    (
        *("item", "tolist", "cpu", "numpy", "is_nonzero", "__array__", "__bool__", "__float__"),
        *("__int__", "__index__", "__complex__", "__repr__", "__format__"),
    )
)
# These take time on the CPU too, without waiting.
_READS_OF_DEVICES = frozenset(("to", "nonzero", "masked_select", "__getitem__"))


@dataclass(frozen=True, kw_only=True)
class WaitShares:
    """Share of a turn in calls that wait for the device, 0 to 1; medians over the probed turns."""

    turns: int = 0  # that were probed
    synchronisation: float = 0.0
    outside: float = 0.0  # the part of it outside of the step


class WaitProbe:
    """Probe of single turns. For the thread that runs the loop.

    Args:
        clock: returns nanoseconds.
        part: returns the part of the turn that the loop is in: "step", "transfer" or "".
    """

    def __init__(self, clock: Callable[[], int], part: Callable[[], str]) -> None:
        self._clock = clock
        self._part = part
        self._mode: Any = None
        self._begun = 0
        self._turns = 0
        self._spent: list[tuple[str, int]] = []  # part and nanoseconds of each call of this turn
        self._lines: dict[tuple[str, str], list[int]] = {}
        self._seen: set[tuple[str, str]] = set()  # in this turn
        self._shares: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)

    @property
    def looks(self) -> bool:
        """True while a turn is probed."""
        return self._mode is not None

    def begin(self, since: int) -> None:
        """Probe the turn that began at `since`, if torch is imported."""
        if "torch" not in sys.modules:
            return
        self._begun = since
        self._spent.clear()
        self._seen.clear()
        self._mode = mode = _mode(self._call)
        mode.__enter__()

    def end(self, *, counts: bool) -> None:
        """End the probe; `counts` is False for a turn that was cut short."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.__exit__(None, None, None)
        took = self._clock() - self._begun
        if not counts or took <= 0:
            return
        self._turns += 1
        outside = sum(spent for part, spent in self._spent if part != "step")
        self._shares.append((sum(spent for _, spent in self._spent) / took, outside / took))
        for line in self._seen:
            self._lines[line][2] += 1

    def shares(self) -> WaitShares:
        """Estimate the shares of all turns from those probed.

        Medians, since work of every hundredth turn may be in one of them.
        """
        if not self._shares:
            return WaitShares()
        waited, outside = (median(part) for part in zip(*self._shares, strict=True))
        return WaitShares(turns=self._turns, synchronisation=waited, outside=outside)

    def lines(self) -> tuple[Blocked, ...]:
        """Return the lines that waited, longest first."""
        found = [
            Blocked(where=where, call=call, count=count, seconds=took / 1e9, turns=turns)
            for (where, call), (count, took, turns) in self._lines.items()
        ]
        return tuple(sorted(found, key=lambda line: -line.seconds))

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], named: Any) -> Any:
        name = getattr(function, "__name__", "")
        # A copy that the loop marks waits on purpose.
        part = self._part()
        if part == "transfer" or not waits(name, args, named):
            return function(*args, **named)
        begun = self._clock()
        try:
            return function(*args, **named)
        finally:
            took = self._clock() - begun
            self._spent.append((part, took))
            self._note((caller(), f"Tensor.{name}"), took)

    def _note(self, line: tuple[str, str], took: int) -> None:
        if line not in self._lines and len(self._lines) >= _MOST_LINES:
            line = ("elsewhere", line[1])
        count = self._lines.setdefault(line, [0, 0, 0])
        count[0] += 1
        count[1] += took
        self._seen.add(line)


def _mode(call: Callable[[Callable[..., Any], tuple[Any, ...], Any], Any]) -> Any:
    """Make a mode that passes the calls of torch's functions to `call`."""
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        # torch leaves the mode for the time of the call.
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            return call(func, args, kwargs or {})

    return Mode()


def waits(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Check whether a call of a tensor's function waits for the device."""
    if name in _READS:
        return True
    if name not in _READS_OF_DEVICES or getattr(args[0], "is_cpu", True):
        return False
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(str(getattr(each, "dtype", "")) == "torch.bool" for each in index)
    if name == "to":
        target = named.get("device", args[1] if len(args) > 1 else None)
        target = getattr(target, "device", target)
        return str(target).startswith("cpu") and not named.get("non_blocking", False)
    return True


def caller() -> str:
    """Return file and line of the caller, outside of torch and of this package's probe."""
    frame: FrameType | None = sys._getframe(1)
    torch_folder = os.path.dirname(str(sys.modules["torch"].__file__)) + os.sep
    inside = (os.path.dirname(__file__) + os.sep, torch_folder, "<frozen", "<eval_with_key>")
    while frame is not None and frame.f_back is not None:
        if not frame.f_code.co_filename.startswith(inside):
            break
        frame = frame.f_back
    assert frame is not None
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(name: str) -> str:
    """Shorten a path to its part in a package, or in the current folder."""
    _, installed, package = name.rpartition("site-packages" + os.sep)
    if installed:
        return package
    try:
        here = os.getcwd() + os.sep
    except OSError:  # it was deleted
        return name
    return name.removeprefix(here)
