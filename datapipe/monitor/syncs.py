"""Probe of the calls in a training loop that wait for the device or for other ranks.

`loss.item()` waits until the device has computed the loss, and leaves it without work afterwards.
In a few turns of the loop the probe replaces the functions that wait, and notes the time of each
call and the line of its caller. It replaces attributes of `torch.Tensor`, since one of torch's own
modes would make compiled steps compile again.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import FrameType, ModuleType
from typing import Any, Literal

from datapipe.diagnosis.loop_figures import Blocked
from datapipe.monitor.patching import Around, Shadows, Target
from datapipe.monitor.ranks import RankSamples
from datapipe.monitor.step_sample import StepRecorder, StepSample

Kind = Literal["synchronisation", "communication"]

FIRST_PROBES = (5, 20, 80)
"""Turns after the warm-up that are probed."""
_RECORDED = 3  # probes at the start that torch's profiler records too
_THEN_RECORDED = 8  # of so many later ones, one
_THEN_EVERY = 503  # a prime, so that work of every 10th or 100th turn is in few of them
RECORDED_EVERY = _THEN_RECORDED * _THEN_EVERY
"""Turns from one recorded step to the next, after the first three."""
# Python 3.13 stops caching a class's attributes after some 1,000 changes.
_MOST_PROBES = 200
_MOST_LINES = 200
_REMEMBERED = 31  # probes

# Functions that read a value from the device, and so wait for it.
_READS = (
    *("item", "tolist", "cpu", "numpy", "is_nonzero", "__array__", "__bool__", "__float__"),
    *("__int__", "__index__", "__complex__", "__repr__", "__format__"),
)
# These take time on the CPU too, without waiting. Not `__getitem__`, which waits if it gets a mask:
# a class whose `__getitem__` was replaced and restored stays a sequence to C code (CPython fills
# `sq_item` and does not empty it), and `torch.tensor` of a list of tensors with a number each
# fails.
_READS_OF_DEVICES = ("to", "nonzero", "masked_select")
_COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("barrier", "monitored_barrier", "send", "recv", "batch_isend_irecv"),
    *("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list"),
)


@dataclass(frozen=True, kw_only=True)
class SyncShares:
    """Time of a turn spent in calls that wait; medians over the probed turns."""

    turns: int = 0  # that were probed
    synchronisation: float = 0.0  # share of a turn that waited for the device
    outside: float = 0.0  # the part of it outside of the step
    communication: float = 0.0  # share of a turn in collectives that Python called


class Probe:
    """Probe of single turns. For the thread that runs the loop.

    Args:
        clock: returns nanoseconds.
        in_step, in_transfer: whether the loop is in a step, or in a marked transfer.
        waited: seconds that the turn waited for its batch.

    Attributes:
        next: number of turns after the warm-up at the next probe.
        samples: turns that were recorded by torch's profiler.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        in_step: Callable[[], bool],
        in_transfer: Callable[[], bool],
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock = clock
        self._waited = waited
        self._recorder = StepRecorder()
        self.samples: deque[StepSample] = deque(maxlen=_REMEMBERED)
        self.ranks = RankSamples()
        self._turn = 0
        self._in_step = in_step
        self._in_transfer = in_transfer
        self._shadows: Shadows | None = None
        self._begun = 0
        self._begins = self._probes = 0
        self.next = FIRST_PROBES[0]
        self._depth = 0
        self._now = dict.fromkeys(("synchronisation", "outside", "communication"), 0)
        self._lines: dict[tuple[str, str, Kind], list[int]] = {}
        self._seen: set[tuple[str, str, Kind]] = set()  # in this turn
        self._shares: deque[tuple[float, float, float]] = deque(maxlen=_REMEMBERED)

    @property
    def looks(self) -> bool:
        """True while this turn is probed."""
        return self._shadows is not None

    def begin(self, turn: int, since: int) -> bool:
        """Probe this turn if it is due; return whether it is probed."""
        if turn < self.next:
            return False
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):
            return False
        reads = partial(self._timed, "synchronisation")
        exchanges = partial(self._timed, "communication")
        calls = waiting_calls(torch, reads=reads, may=self._may_wait, exchanges=exchanges)
        shadows = Shadows(tuple(calls))
        self._begun = since
        self._depth = 0
        self._now = dict.fromkeys(self._now, 0)
        self._seen.clear()
        # Set before the replacement, so that `end` undoes one that an interrupt cut short.
        self._shadows = shadows
        if not shadows.put():
            self._shadows = None
            return False
        if self._begins < _RECORDED or self._begins % _THEN_RECORDED == 0:
            since = self._clock()
            self._recorder.begin()
            self._begun += self._clock() - since  # starting the profiler is no part of the turn
        self._begins += 1
        self._turn = turn
        later = [number for number in FIRST_PROBES if number > turn]
        self.next = later[0] if later else turn + _THEN_EVERY
        if self._begins >= _MOST_PROBES:
            self.next = sys.maxsize
        return True

    def end(self, *, counts: bool = True) -> None:
        """End the probe; `counts` is False for a turn that was cut short."""
        if self._shadows is None:
            return
        self._shadows.remove()
        took = self._clock() - self._begun
        sample = self._recorder.end(turn=self._turn, waited=self._waited(), counts=counts)
        # Last, so that what an interrupt cut short is done by the next call.
        self._shadows = None
        if sample is not None:
            self.samples.append(sample)
            self.ranks.write(self.samples)
        if not counts or took <= 0:
            return
        self._probes += 1
        waited, outside, exchanged = (self._now[name] / took for name in self._now)
        self._shares.append((waited, outside, exchanged))
        for line in self._seen:
            self._lines[line][2] += 1

    def shares(self) -> SyncShares:
        """Estimate the shares of all turns from those probed.

        Medians, since work of every hundredth turn may be in one of them.
        """
        if not self._shares:
            return SyncShares()
        waited, outside, exchanged = (median(part) for part in zip(*self._shares, strict=True))
        return SyncShares(
            turns=self._probes, synchronisation=waited, outside=outside, communication=exchanged
        )

    def lines(self) -> tuple[Blocked, ...]:
        """Return the lines that waited, longest first."""
        found = [
            Blocked(where=where, call=call, kind=kind, count=count, seconds=took / 1e9, turns=turns)
            for (where, call, kind), (count, took, turns) in self._lines.items()
        ]
        return tuple(sorted(found, key=lambda line: -line.seconds))

    def _may_wait(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if not reads_device(name, args, options):
            return function(*args, **options)
        return self._timed("synchronisation", name, function, args, options)

    def _timed(
        self,
        kind: Kind,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if self._depth or self._in_transfer():
            return function(*args, **options)
        self._depth += 1
        begun = self._clock()
        try:
            return function(*args, **options)
        finally:
            took = self._clock() - begun
            self._depth -= 1
            self._note(name, kind, took)

    def _note(self, name: str, kind: Kind, took: int) -> None:
        self._now[kind] += took
        if kind == "synchronisation" and not self._in_step():
            self._now["outside"] += took
        line = (caller(), name, kind)
        if line not in self._lines and len(self._lines) >= _MOST_LINES:
            line = ("elsewhere", name, kind)
        count = self._lines.setdefault(line, [0, 0, 0])
        count[0] += 1
        count[1] += took
        self._seen.add(line)


def waiting_calls(
    torch: ModuleType, *, reads: Around, may: Around, exchanges: Around
) -> Iterator[Target]:
    """List the attributes to replace."""
    for name in _READS:
        yield Target(torch.Tensor, name, f"Tensor.{name}", reads)
    for name in _READS_OF_DEVICES:
        yield Target(torch.Tensor, name, f"Tensor.{name}", may)
    yield Target(torch.cuda, "synchronize", "torch.cuda.synchronize", reads)
    yield Target(torch.cuda.Event, "synchronize", "Event.synchronize", reads)
    yield Target(torch.cuda.Stream, "synchronize", "Stream.synchronize", reads)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        for name in _COLLECTIVES:
            yield Target(distributed, name, f"torch.distributed.{name}", exchanges)
        yield Target(distributed.Work, "wait", "Work.wait", exchanges)


def reads_device(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Check whether a call of `_READS_OF_DEVICES` waits for the device."""
    if not args or getattr(args[0], "is_cpu", True):
        return False
    if name == "Tensor.to":
        target = options.get("device", args[1] if len(args) > 1 else None)
        target = getattr(target, "device", target)
        return str(target).startswith("cpu") and not options.get("non_blocking", False)
    return True


def caller() -> str:
    """Return file and line of the caller, outside of torch and of this package's probes."""
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
