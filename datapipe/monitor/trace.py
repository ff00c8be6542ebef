"""Traces of a training loop: its own rows beside torch's profiler, and ranges for profilers."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.errors import DatapipeError, PlanError
from datapipe.monitor.loop_timer import BEGIN, ENTER, GOT, LEAVE, PARTS, Event
from datapipe.report.trace import TraceEvent, merge_trace, write_document

logger = logging.getLogger(__name__)

ROW = "training loop"
_MARKER = "datapipe.clock"


@dataclass(frozen=True, kw_only=True)
class TraceOrder:
    """Request for a trace.

    Raises:
        PlanError: a number is out of range, or the folder is not there.
    """

    path: Path  # of the JSON file
    start: int  # turns before it
    count: int  # turns to trace

    def __post_init__(self) -> None:
        if self.start < 0 or self.count < 1:
            raise PlanError(
                f"steps=({self.start}, {self.count}): a trace begins after 0 or more steps, and is "
                "of 1 or more; (10, 5) are a good choice"
            )
        if not self.path.absolute().parent.is_dir():
            raise PlanError(
                f"the trace {self.path} cannot be written, as its folder is not there; make it "
                "before training"
            )


class LoopTrace:
    """A trace in progress, by torch's profiler too unless another one runs.

    Args:
        path: of the JSON file.
        clock: of the events that are added.
    """

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self._path = path
        self._noted: list[Event] = []
        self._profiler = _start_profiler()
        self._marker_ns = clock()
        if self._profiler is not None:
            with sys.modules["torch"].autograd.profiler.record_function(_MARKER):
                pass
        self._clock = clock
        self._began = clock()

    def add(self, events: Iterable[Event]) -> None:
        """Add events of the loop."""
        self._noted += events

    def finish(self, stages: Iterable[TraceEvent] = ()) -> None:
        """Write the file, with the `stages` of the loader's threads in the time of the trace.

        Errors go to the log, so that training goes on.
        """
        end = self._clock()
        events = [
            *_rows(self._noted),
            *(
                (row, f"datapipe.{name}", start, stop)
                for row, name, start, stop in stages
                if stop > self._began and start < end
            ),
        ]
        try:
            document = {} if self._profiler is None else _stop_profiler(self._profiler)
            merged = merge_trace(document, events, marker=_MARKER, marker_ns=self._marker_ns)
            write_document(self._path, merged)
        except DatapipeError as error:
            logger.warning("%s", error)
        else:
            logger.info("%s shows these steps; open it in ui.perfetto.dev", self._path)


def _rows(noted: Iterable[Event]) -> Iterator[TraceEvent]:
    """Turn noted events into those of the loop's row."""
    begun: list[tuple[str, int]] = []  # what is open, and since when
    for event, now, part in noted:
        if event in (BEGIN, ENTER):
            name = "wait" if event == BEGIN else PARTS[part]
            begun.append((f"datapipe.{name}", now))
        elif event in (GOT, LEAVE):
            if begun:
                yield (ROW, *begun.pop(), now)
        else:
            begun.clear()


def _start_profiler() -> Any:
    """Start torch's profiler; None if it cannot be used."""
    if "torch" not in sys.modules:
        return None
    if profiled():
        logger.info("a profiler is running already, so the trace has none of torch's events")
        return None
    torch_profiler = importlib.import_module("torch.profiler")
    try:
        found = torch_profiler.profile(activities=torch_profiler.supported_activities())
        found.__enter__()
    except Exception as error:  # the profiler may fail for any reason
        logger.warning("the trace has none of torch's events: %s", error)
        return None
    return found


def _stop_profiler(profiler: Any) -> dict[str, Any]:
    """Return the profiler's trace; an empty one, with a line in the log, if there is none."""
    number, name = tempfile.mkstemp(suffix=".json", prefix="datapipe-trace-")
    os.close(number)
    try:
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace(name)
        document: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
    except Exception as error:
        logger.warning("the trace has none of torch's events: %s", error)
        return {}
    finally:
        Path(name).unlink(missing_ok=True)
    return document


class Ranges:
    """Named ranges of one thread, nested: torch's, and NVIDIA's through NVTX if there is a GPU."""

    def __init__(self) -> None:
        self._open: list[tuple[AbstractContextManager[Any], bool]] = []

    def push(self, name: str) -> None:
        """Open a range, if torch is imported."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        opened = torch.autograd.profiler.record_function(name)
        opened.__enter__()
        nvtx = bool(torch.cuda.is_available())
        if nvtx:
            torch.cuda.nvtx.range_push(name)
        self._open.append((opened, nvtx))

    def pop(self) -> None:
        """Close the range opened last, if any is open."""
        if not self._open:
            return
        opened, nvtx = self._open.pop()
        if nvtx:
            sys.modules["torch"].cuda.nvtx.range_pop()
        opened.__exit__(None, None, None)

    def close(self) -> None:
        """Close all ranges."""
        while self._open:
            self.pop()


def profiled() -> bool:
    """Check whether a profiler of torch runs, ours included.

    torch has no public question for this; the answer is no where the flag is missing.
    """
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False))
