"""Chrome traces for chrome://tracing and ui.perfetto.dev.

The format is Google's Trace Event Format, of which two kinds of event are used: complete ones ("X")
and names of rows ("M"). torch's profiler writes the same format on a clock of its own; a range that
was timed on both clocks aligns them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from datapipe.report.files import write_whole

TraceEvent = tuple[str, str, int, int]
"""Row, name, start and end; both in ns of one clock, such as `time.perf_counter_ns`."""

_PROCESS = 1 << 30  # above any process id, so that our rows mix with no other process's


def write_trace(
    path: str | os.PathLike[str],
    events: Iterable[TraceEvent],
    *,
    recorded: Mapping[str, Any] = MappingProxyType({}),
    marker: str = "",
    marker_ns: int = 0,
) -> None:
    """Write one Chrome trace; time 0 is the start of the earliest event.

    Events of a row must not overlap, other than one inside another. They are added to the trace
    `recorded` of a profiler, on its clock, if that has the range `marker`, which began at
    `marker_ns` on our clock.
    """
    events, theirs = list(events), recorded.get("traceEvents", [])
    starts = [event["ts"] for event in theirs if event.get("name") == marker and "ts" in event]
    if starts:
        ours = _chrome_events(events, zero_ns=marker_ns, zero_us=float(min(starts)))
        document = {**recorded, "traceEvents": [*theirs, *ours]}
    else:
        zero = min((start for _, _, start, _ in events), default=0)
        document = {"traceEvents": _chrome_events(events, zero_ns=zero)}
    write_whole(path, json.dumps({"displayTimeUnit": "ms", **document}), "trace")


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
    named = [("process", 0, "datapipe", -1)] if rows else []
    named += [("thread", number, row, number) for row, number in rows.items()]
    about = [
        {"ph": "M", "name": f"{kind}_{what}", "pid": _PROCESS, "tid": number, "args": {what: value}}
        for kind, number, name, order in named
        for what, value in (("name", name), ("sort_index", order))
    ]
    return about + sorted(complete, key=lambda event: event["ts"])
