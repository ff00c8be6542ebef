"""Chrome traces for chrome://tracing and ui.perfetto.dev.

The format is Google's Trace Event Format, of which two kinds of event are used: complete ones ("X")
and names of rows ("M"). torch's profiler writes the same format on a clock of its own; a range that
was timed on both clocks aligns them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from datapipe.report.files import write_whole

TraceEvent = tuple[str, str, int, int]
"""Row, name, start and end; both in ns of one clock, such as `time.perf_counter_ns`."""

_PROCESS = 1 << 30  # above any process id, so that our rows mix with no other process's


def write_trace(path: str | os.PathLike[str], events: Iterable[TraceEvent]) -> None:
    """Write one Chrome trace; time 0 is the start of the earliest event.

    Events of a row must not overlap, other than one inside another.
    """
    write_document(path, _document(list(events)))


def merge_trace(
    document: dict[str, Any], events: Sequence[TraceEvent], *, marker: str, marker_ns: int
) -> dict[str, Any]:
    """Return the trace of a profiler with events of ours, on the profiler's clock.

    Its range `marker`, which began at `marker_ns` on our clock, aligns them; without it, the result
    has our events alone.
    """
    recorded = document.get("traceEvents", [])
    starts = [event["ts"] for event in recorded if event.get("name") == marker and "ts" in event]
    if not starts:
        return _document(events)
    added = _chrome_events(events, zero_ns=marker_ns, zero_us=float(min(starts)))
    return {**document, "traceEvents": [*recorded, *added]}


def write_document(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Write a trace as JSON."""
    write_whole(path, json.dumps({"displayTimeUnit": "ms", **document}), "trace")


def _document(events: Sequence[TraceEvent]) -> dict[str, Any]:
    zero = min((start for _, _, start, _ in events), default=0)
    return {"traceEvents": _chrome_events(events, zero_ns=zero)}


def _chrome_events(
    events: Sequence[TraceEvent], *, zero_ns: int, zero_us: float = 0.0
) -> list[dict[str, Any]]:
    """Return the events as Chrome takes them, with rows in order of first appearance.

    `zero_ns` is a moment on the clock of the events, and `zero_us` the same one on the trace's.
    """
    rows = {row: at for at, row in enumerate(dict.fromkeys(event[0] for event in events), start=1)}
    complete: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": "datapipe",
            "name": name,
            "pid": _PROCESS,
            "tid": rows[row],
            "ts": round(zero_us + (start - zero_ns) / 1000, 3),
            "dur": round(max(end - start, 0) / 1000, 3),
        }
        for row, name, start, end in events
    ]
    about = []
    if rows:
        about.append(_metadata("process_name", 0, name="datapipe"))
        about.append(_metadata("process_sort_index", 0, sort_index=-1))
    for row, number in rows.items():
        about.append(_metadata("thread_name", number, name=row))
        about.append(_metadata("thread_sort_index", number, sort_index=number))
    return about + sorted(complete, key=lambda event: event["ts"])


def _metadata(kind: str, row: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": row, "args": args}
