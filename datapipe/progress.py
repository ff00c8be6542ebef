"""Progress of long work: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PLAIN_EVERY = 10.0
"""Seconds between lines on a stream that is no terminal."""


def is_watched(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; it may be closed."""
    return stream is not None and not stream.closed and stream.isatty()


def readable_size(size: int) -> str:
    """Format bytes: `88.0 KB`."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


class Progress:
    """Progress of a job on stderr: done, rate and time left.

    `total` may count another unit than the rate: samples per second of a scan whose end is known in
    bytes. Use as a context manager; a short job on a pipe prints nothing. One bar is on a terminal
    at a time: jobs inside of it, or beside it in other threads, show none.
    """

    _on_terminal = threading.Lock()

    def __init__(
        self, title: str, *, unit: str, total: int | None = None, total_unit: str | None = None
    ) -> None:
        self._title, self._unit, self._total = title, unit, total
        self._same = total_unit is None or total_unit == unit
        self._done = self._reached = 0
        self._note = ""
        self._start = self._shown = time.monotonic()
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._is_inside = False

    def __enter__(self) -> Progress:
        self._start = self._shown = time.monotonic()
        watched = is_watched(sys.stderr)
        self._is_inside = watched and not self._on_terminal.acquire(blocking=False)
        if watched and not self._is_inside:
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
            )
            try:
                self._bar.start()
            except BaseException:  # an interrupt must not leave the cursor hidden
                self.__exit__()
                raise
            self._bar.add_task(self._title, total=self._total, rate="", note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
            self._on_terminal.release()

    def advance(self, done: int = 1, *, of_total: int | None = None, note: str = "") -> None:
        """Count `done` more units, `of_total` more towards the total, and show them when due."""
        with self._lock:
            self._done += done
            self._reached += done if self._same else (of_total or 0)
            self._note = note or self._note
            now = time.monotonic()
            if self._is_inside or now - self._shown < (0.1 if self._bar else PLAIN_EVERY):
                return
            self._shown, passed = now, max(now - self._start, 1e-9)
            rate = f"{self._done:,} {self._unit}s, {self._done / passed:,.0f}/s"
            if self._bar:
                (task,) = self._bar.task_ids
                self._bar.update(task, completed=self._reached, rate=rate, note=self._note)
            else:
                line = ", ".join([f"{self._title}: {rate}", *self._left(passed), self._note])
                print(line.removesuffix(", "), file=sys.stderr, flush=True)

    def _left(self, passed: float) -> Iterator[str]:
        if self._total:
            share = min(self._reached / self._total, 1.0)
            yield f"{share:.0%}"
            if 0 < share < 1:
                yield f"{passed * (1 - share) / share:,.0f} s left"
