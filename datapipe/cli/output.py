"""Output of the commands, and their end where it cannot be written."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from datapipe.progress import readable_size

if TYPE_CHECKING:
    from datapipe.convert.job import ConvertReport
    from datapipe.curate.spec import CopyReport
    from datapipe.pack.report import PackReport

    Report = PackReport | ConvertReport | CopyReport

_WRITTEN = (
    *("samples", "images", "rejected", "shards", "bytes", "seconds", "output", "finished_before"),
)
_NAMES = 9  # characters for the names of a table, at least
_SHOWN_REJECTS = 5
_CLOSED = 128 + signal.SIGPIPE
"""Exit code that shells report of a program that SIGPIPE ended, as it ends `cat`."""


def print_table(title: str, rows: dict[str, str]) -> None:
    width = max([_NAMES, *map(len, rows)])
    print(title)
    for name, value in rows.items():
        print(f"  {name:<{width}} {value}")


def print_written(
    reports: Mapping[str, ConvertReport | CopyReport], made: str, *, as_json: bool
) -> None:
    """Print the reports of new datasets by name; that of a single one has none."""
    if as_json:
        found = {
            name: {key: getattr(report, key) for key in _WRITTEN if hasattr(report, key)}
            for name, report in reports.items()
        }
        print(json.dumps(found.get("", found)))
        return
    for report in reports.values():
        title, done = f"{made} {report.output}", report.samples
        if report.finished_before:
            title, done = f"{report.output} is finished already, nothing to do", 0
        print_table(title, report_rows(report, done, "samples"))
        print_rejects(report)


def report_rows(report: Report, done: int, unit: str) -> dict[str, str]:
    """Return the rows of a report on a run that took so many samples or inputs."""
    names = [name for name in ("samples", "images", "rejected", "shards") if hasattr(report, name)]
    rows = {name: f"{getattr(report, name):,}" for name in names}
    rows["size"] = readable_size(report.bytes)
    if saved := getattr(report, "saved_bytes", 0):
        rows["saved"] = f"{readable_size(saved)} ({saved / (report.bytes + saved):.0%})"
    rows["time"] = f"{report.seconds:.1f} s"
    rate = f"{done / max(report.seconds, 1e-9):,.0f} {unit}/s"
    return rows | ({"rate": rate} if done else {})


def print_rejects(report: Report, *, written: bool = True) -> None:
    """Print the first rejected inputs, and the file that lists all of them."""
    for reject in report.examples[:_SHOWN_REJECTS]:
        file = f"{reject.file}: " if reject.file else ""
        print(shown(f"rejected {reject.source}: {file}{reject.reason}"))
    if report.rejected and written:
        print(f"all rejects: {report.output.rstrip('/')}/rejects.jsonl")


def bars(counts: list[int], width: int = 40) -> list[str]:
    """Return a row of signs for each count, as long as it is large; any count above 0 shows."""
    most = max([1, *counts])
    lengths = [-(-count * width // most) for count in counts]
    return [f"{'#' * length:<{width}}" for length in lengths]


def shown(text: str) -> str:
    """Escape the characters of a line that would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_lines(text: str) -> str:
    """Escape the lines of a text, as `shown` does."""
    return "\n".join(map(shown, text.split("\n")))


class OutputLost(Exception):
    """Standard output or standard error cannot be written. Not an `OSError`, as data have."""

    def __init__(self, name: str, cause: OSError) -> None:
        super().__init__(f"{name}: {cause.strerror}")
        self.closed = isinstance(cause, BrokenPipeError)


class _Guarded:
    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def write(self, text: str) -> Any:
        return self._try(self._stream.write, text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., Any], *given: str) -> Any:
        try:
            return act(*given)
        except OSError as error:
            raise OutputLost(self._name, error) from error


@contextmanager
def ending_where_output_is_lost() -> Iterator[None]:
    """End the program where its output cannot be written, with the code of an earlier error.

    The reader may have gone, as in `datapipe plan ... | head`: the command ends quietly. The disk
    may be full: the command ends with one line.
    """
    streams = sys.stdout, sys.stderr
    for name, label in (("stdout", "standard output"), ("stderr", "standard error")):
        if stream := getattr(sys, name):  # None if it was closed before the start
            setattr(sys, name, _Guarded(stream, label))
    code: object = None
    try:
        try:
            yield
        except SystemExit as end:
            code = end.code
            raise
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except OutputLost as lost:
        if not lost.closed and not code:
            with suppress(OutputLost):
                print(f"Error: {lost}", file=sys.stderr)
        _discard()
        raise SystemExit(code or (_CLOSED if lost.closed else 1)) from None
    finally:
        sys.stdout, sys.stderr = streams


def _discard() -> None:
    """Redirect standard output to /dev/null; else the interpreter's end reports its buffer.

    Standard error too, where it is the same file (`2>&1 | head`).
    """
    with suppress(OSError, ValueError, AttributeError):  # not a file, or none
        nowhere = os.open(os.devnull, os.O_WRONLY)
        same = os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
        os.dup2(nowhere, sys.stdout.fileno())
        if same:
            os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
