"""Traces of a training loop: its own rows beside torch's profiler."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from datapipe.errors import DatapipeError, PlanError
from datapipe.monitor.loop_timer import BEGIN, ENTER, GOT, LEAVE, PARTS, Event
from datapipe.monitor.profiler import start_profiler, stop_profiler
from datapipe.report.trace import TraceEvent, write_trace

logger = logging.getLogger(__name__)

ROW = "training loop"
_MARKER = "datapipe.clock"


class LoopTrace:
    """A trace of `count` turns after `start` others, with torch's events unless a profiler runs."""

    def __init__(self, path: Path, start: int, count: int, clock: Callable[[], int]) -> None:
        if not path.absolute().parent.is_dir():
            raise PlanError(
                f"the trace {path} cannot be written, because its folder does not exist; create "
                "it before training"
            )
        self.path, self.start, self.count = path, start, count
        self.runs = False
        self._clock = clock
        self._noted: list[Event] = []
        self._profiler: Any = None
        self._marker = self._began = 0

    def begin(self) -> None:
        self.runs = True
        try:
            self._profiler = start_profiler()
        except Exception as error:  # the profiler may fail for any reason
            logger.warning("the trace has none of torch's events: %s", error)
        if self._profiler is not None:
            self._marker = self._clock()
            with sys.modules["torch"].autograd.profiler.record_function(_MARKER):
                pass
        elif "torch" in sys.modules:
            logger.info("a profiler is running already, so the trace has none of torch's events")
        self._began = self._clock()

    def add(self, events: Iterable[Event]) -> None:
        self._noted += events

    def finish(self, stages: Iterable[TraceEvent] = ()) -> None:
        """Write the file, with the `stages` of the loader's threads in the time of the trace.

        Errors go to the log, so that training continues.
        """
        end = self._clock()
        events = [*_rows(self._noted)]
        events += [
            (row, f"datapipe.{name}", start, stop)
            for row, name, start, stop in stages
            if stop > self._began and start < end
        ]
        try:
            recorded, began = self._profiled(), self._marker
            write_trace(self.path, events, recorded=recorded, marker=_MARKER, marker_ns=began)
        except DatapipeError as error:
            logger.warning("%s", error)
        else:
            logger.info("%s shows these steps; open it in ui.perfetto.dev", self.path)

    def _profiled(self) -> dict[str, Any]:
        """Stop the profiler and return its trace; empty, with a line in the log, without one."""
        if self._profiler is None:
            return {}
        try:
            if not stop_profiler(self._profiler):
                logger.info("a profiler was started, so the trace has none of torch's events")
                return {}
            with tempfile.TemporaryDirectory(prefix="datapipe-trace-") as folder:
                file = Path(folder, "trace.json")
                self._profiler.export_chrome_trace(str(file))
                document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except Exception as error:
            logger.warning("the trace has none of torch's events: %s", error)
            return {}
        return document


def _rows(noted: Iterable[Event]) -> Iterator[TraceEvent]:
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
