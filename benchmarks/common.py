"""Interleaved measurement: named contestants, rounds, ratios with their spread.

Timings on a shared machine drift, so contestants run in turn within every round, the order is
rotated from round to round, and a ratio is taken inside its round before the median is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.cpus import cpu_model
from datapipe.extras import DISTRIBUTION

Row = dict[str, Any]
"""A record of a table: figures by name."""

_WIDE = 9  # columns of a table that fit side by side


@dataclass(frozen=True, kw_only=True)
class Run:
    """Result of one contestant in one round.

    Attributes:
        samples: counted in `seconds`.
        seconds: of steady work.
        startup: seconds before that, which the rate leaves out.
        consumer: seconds of CPU time that the consuming thread spent in `seconds`.
    """

    samples: int
    seconds: float
    startup: float | None = None
    consumer: float | None = None

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


class Absent(Exception):
    """A contestant takes no part, or no longer; the message says why."""


class Contestant(NamedTuple):
    """Something to measure.

    `make` is called once before the first round and returns what each round calls. An ImportError
    is reported as "not installed"; both may raise Absent. `note` says how to judge the figure.
    """

    name: str
    make: Callable[[], Callable[[], Run]]
    note: str = ""


class Spread(NamedTuple):
    """Median, least and most of some rounds.

    Examples:
        >>> str(Spread.of([1.0, 3.0, 2.0]))
        '2.00 (1.00-3.00)'
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(kw_only=True)
class Result:
    """Outcome of a contestant: a run for each counted round, or the reason why there is none."""

    name: str
    note: str
    runs: list[Run] = field(default_factory=list)
    missing: str = ""
    warm_up: Run | None = None

    @property
    def rate(self) -> Spread:
        return Spread.of([run.rate for run in self.runs])

    @property
    def startup(self) -> Spread | None:
        """Seconds."""
        values = [run.startup for run in self.runs if run.startup is not None]
        return Spread.of(values) if values else None

    @property
    def consumer(self) -> Spread | None:
        """Seconds of the consuming thread for each sample."""
        values = [run.consumer / run.samples for run in self.runs if run.consumer is not None]
        return Spread.of(values) if values else None

    def ratio(self, reference: Result) -> Spread:
        """Rate relative to that of `reference` in the same round."""
        pairs = zip(self.runs, reference.runs, strict=True)
        return Spread.of([own.rate / other.rate for own, other in pairs])


def compete(
    contestants: Sequence[Contestant],
    rounds: int,
    after_round: Callable[[list[Result]], None] = lambda results: None,
) -> list[Result]:
    """Run all contestants in turn, `rounds` times after one round that warms up and does not count.

    `after_round` is given the results after each round that counts.
    """
    results = [Result(name=entry.name, note=entry.note) for entry in contestants]
    ready: list[tuple[Result, Callable[[], Run]]] = []
    for entry, result in zip(contestants, results, strict=True):
        try:
            ready.append((result, entry.make()))
        except ImportError as error:
            result.missing = f"not installed: {error}"
        except Absent as reason:
            result.missing = str(reason)
    for number in range(rounds + 1):
        turn = number % max(len(ready), 1)
        for result, run in ready[turn:] + ready[:turn]:
            if result.missing:
                continue
            try:
                done = run()
            except Absent as reason:
                # Without its earlier rounds too: ratios are taken over whole rounds.
                result.missing, result.runs = str(reason), []
                continue
            if number:
                result.runs.append(done)
            else:
                result.warm_up = done
            which = f"round {number} of {rounds}" if number else "warm-up"
            print(f"{which}: {result.name}: {done.rate:,.0f}/s", file=sys.stderr, flush=True)
        if number:
            after_round(results)
    return results


def command(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME`, described by its module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parse(parser: argparse.ArgumentParser, *, samples: int, rounds: int) -> argparse.Namespace:
    """Add the options that most benchmarks have, and parse the command line."""
    add = parser.add_argument
    each = "threads or processes each (default: %(default)s)"
    add("--samples", type=natural, default=samples, help="photographs (default: %(default)s)")
    add("--rounds", type=natural, default=rounds, help="counted rounds (default: %(default)s)")
    add("--workers", type=natural, default=2, help=each)
    add("--only", nargs="+", metavar="NAME", help="run these contestants alone")
    return parse_args(parser)


def natural(text: str) -> int:
    """Return a number of the command line that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")


def parse_args(parser: argparse.ArgumentParser) -> argparse.Namespace:
    add_json(parser)
    return parser.parse_args()


def chosen(names: Iterable[str], only: Sequence[str] | None) -> list[str]:
    """Return the names that `--only` gives; all without it."""
    every = list(names)
    if unknown := set(only or ()) - set(every):
        sys.exit(f"--only {sorted(unknown)}: choose from {every}")
    return [name for name in every if only is None or name in only]


def machine(*packages: str, cache: str) -> dict[str, Any]:
    """Return facts of the machine, with the versions of `packages` and the page cache's state."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "page cache": cache,
    }


def headline(where: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    gpu = f"{where['gpu']}; " if "gpu" in where else ""
    return (
        f"{gpu}{where['cpu']}, {where['cores']} cores; Python {where['python']}, {versions}; "
        f"page cache {where['page cache']}; load at the start {where['load']}"
    )


def race(
    contestants: Sequence[Contestant], options: argparse.Namespace, title: str, **about: Any
) -> None:
    """Run the contestants that `--only` names; `about` has further arguments of `report`."""
    names = chosen([entry.name for entry in contestants], options.only)
    results = compete([one for one in contestants if one.name in names], options.rounds)
    report(title, results, path=options.json, **about)


def report(
    title: str,
    results: Sequence[Result],
    *,
    where: dict[str, Any],
    references: Sequence[str],
    unit: str,
    path: Path | None,
) -> None:
    """Print a table, and write every round as JSON to `path`.

    Args:
        title: what was measured, with its settings.
        results: in the order of the table.
        where: from `machine`.
        references: names of the contestants that the others are compared with.
        unit: of the rates.
        path: None writes nothing.
    """
    print(f"\n{title}\n{headline(where)}\n")
    by_name = {result.name: result for result in results if result.runs}
    against = [by_name[name] for name in references if name in by_name]
    print(*aligned(_rows(results, against, unit)), sep="\n")
    content = {"title": title, "unit": unit, "machine": where}
    content["references"] = [reference.name for reference in against]
    write_json(path, content | {"results": [asdict(result) for result in results]})


def made_once(folder: Path, write: Callable[[Path], object]) -> Path:
    """Return a folder; have `write` fill it if it is missing. It appears whole."""
    if not folder.exists():
        temporary = folder.with_name(f"{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write(temporary)
        temporary.rename(folder)
    return folder


def write_json(path: Path | None, content: Any) -> None:
    """Write a file of results whole, or leave the one before; None writes nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def show(title: str, rows: Iterable[Row]) -> list[Row]:
    """Print records as a table, on its side if it is wide, and return them."""
    kept = list(rows)
    print(f"\n{title}\n", flush=True)
    names = list(dict.fromkeys(name for row in kept for name in row))
    lines = [names, *([_cell(row.get(name)) for name in names] for row in kept)]
    if len(names) > _WIDE:
        lines = [list(line) for line in zip(*lines, strict=True)]
    print(*(aligned(lines) if kept else ()), sep="\n", flush=True)
    return kept


def show_as(kind: str, content: dict[str, Any], path: Path | None = None) -> None:
    """Print results as a kind of figure of the page of benchmarks, without charts; write them."""
    from tools.docs_site.figures import as_text  # which imports this module

    print(f"\n{as_text(kind, content)}\n", flush=True)
    write_json(path, content)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _rows(results: Sequence[Result], against: Sequence[Result], unit: str) -> Iterator[list[str]]:
    timed = any(result.startup for result in results)
    watched = any(result.consumer for result in results)
    ratios = [f"x {reference.name}" for reference in against]
    extra = [*["start-up s (first)"] * timed, *["consumer µs"] * watched]
    yield ["", f"{unit} (min-max)", *ratios, *extra, "note"]
    for result in results:
        if result.missing:
            yield [result.name, "-", *["-"] * (len(ratios) + len(extra)), result.missing]
            continue
        startup = f"{result.startup.median:.2f}" if result.startup else "-"
        if result.startup and result.warm_up and result.warm_up.startup is not None:
            startup += f" ({result.warm_up.startup:.2f})"
        consumer = f"{1e6 * result.consumer.median:.0f}" if result.consumer else "-"
        rate = "{:,.0f} ({:,.0f}-{:,.0f})".format(*result.rate)
        values = [str(result.ratio(other)) for other in against]
        own = [*[startup] * timed, *[consumer] * watched]
        yield [result.name, rate, *values, *own, result.note]


def aligned(rows: Iterable[list[str]]) -> Iterator[str]:
    """Format the rows as a Markdown table that is readable in a terminal too."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"


def _version(package: str) -> str:
    try:
        return version(DISTRIBUTION if package == "datapipe" else package)
    except PackageNotFoundError:
        return "missing"
