"""Tables and charts of measured results, drawn from benchmarks/results/*.json.

A page asks for one by a line of its own, which other readers of the Markdown do not show:

    <!-- figure race loaders-float32 -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.common import Result, Run, Spread, aligned
from benchmarks.ladder.ratios import LAST, ratios
from datapipe.errors import DatapipeError
from tools.docs_site.chart import Bar, bar_chart

MARK = re.compile(r"^<!-- figure (\S+) (\S+) -->$", re.MULTILINE)
_LIMIT = "limit: "


class NoFigure(DatapipeError):
    """A page asks for a figure that cannot be drawn."""


def with_figures(markdown: str, results: Path) -> str:
    """Return a page with its figures drawn.

    Args:
        markdown: the page.
        results: folder of the JSON files.

    Raises:
        NoFigure: there is no such kind of figure, or no such file.
    """

    def drawn(match: re.Match[str]) -> str:
        kind, name = match.groups()
        path = results / f"{name}.json"
        if kind not in _KINDS or not path.exists():
            raise NoFigure(f"figure {kind} {name}: kinds are {', '.join(_KINDS)}; file {path}")
        return _KINDS[kind](json.loads(path.read_text("utf-8")))

    return MARK.sub(drawn, markdown)


def as_text(kind: str, content: Any) -> str:
    """Return a figure for a terminal: its tables, and no charts."""
    blocks = _KINDS[kind](content).split("\n\n")
    return "\n\n".join(block for block in blocks if not block.startswith("<"))


def race_results(content: dict[str, Any]) -> list[Result]:
    """Return the contestants of a race as `benchmarks.common.report` wrote them."""
    return [
        Result(
            name=entry["name"],
            note=entry["note"],
            missing=entry["missing"],
            runs=[Run(**run) for run in entry["runs"]],
        )
        for entry in content["results"]
    ]


def _race(content: dict[str, Any]) -> str:
    """Contestants of a race: rate, ratios to the references, start-up, consuming thread."""
    results = race_results(content)
    ran = [result for result in results if result.runs]
    references = [result for result in ran if result.name in content["references"]]
    head = ["", content["unit"], *(f"x {reference.name}" for reference in references)]
    startup = any(result.startup for result in ran)
    consumer = any(result.consumer for result in ran)
    head += ["start-up, s"] * startup + ["consumer, µs"] * consumer + ["what it is"]
    rows = []
    for result in sorted(ran, key=lambda result: -result.rate.median):
        row = [_bold(result.name), f"{result.rate.median:,.0f}"]
        row += [_spread(result.ratio(reference)) for reference in references]
        row += [_median(result.startup, 1)] * startup
        row += [_median(result.consumer, 1e6, 1)] * consumer
        rows.append([*row, result.note])
    rows += [[entry.name, "did not run", entry.missing] for entry in results if not entry.runs]
    bars = [
        Bar(
            name=result.name,
            value=result.rate.median,
            low=result.rate.low,
            high=result.rate.high,
            own=result.name.startswith("datapipe"),
            limit=result.name.startswith(_LIMIT),
        )
        for result in sorted(ran, key=lambda result: -result.rate.median)
    ]
    chart = bar_chart(bars, title=content["title"], unit=content["unit"])
    return _block(content, chart, _table(head, rows))


def _fill(content: dict[str, Any]) -> str:
    """Fill of packs by lengths and capacity, %."""
    columns = ("next-fit", "BFD/1,024", "BFD/block", "BFD, global", "datapipe")
    head = ["lengths", "pack", *columns[:-1], "**datapipe**"]
    rows = [
        [_lengths(row["lengths"]), f"{row['capacity']:,}"]
        + [f"{100 * row[column]:.2f}" for column in columns]
        for row in [*content["fill"], *content["hard"]]
    ]
    return _block(content, _table(head, rows))


def _balance(content: dict[str, Any]) -> str:
    """Imbalance of a step, %."""
    head = ["lengths", "ranks", "packs laid out", "text, %", "images, %"]
    rows = [
        [
            _lengths(row["images of"]),
            row["ranks"],
            row["packs laid out"].replace("groups", "**groups (datapipe)**"),
            f"{row['text, %']:.2f}",
            f"{row['images, %']:.2f}",
        ]
        for row in content["balance"]
    ]
    return _block(content, _table(head, rows))


def _planning(content: dict[str, Any]) -> str:
    """Seconds to plan a million lengths."""
    head = ["lengths", "pack", "images evened out", "a million, s", "block, ms"]
    rows = [
        [
            _lengths(row["lengths"]),
            f"{row['capacity']:,}",
            row["images"],
            f"{row['s, median']:.2f} ({row['s, least']:.2f}-{row['s, most']:.2f})",
            f"{row['kernel, ms a block']:.0f}",
        ]
        for row in content["speed"]
    ]
    return _block(content, _table(head, rows))


def _ladder(content: dict[str, Any]) -> str:
    """Rungs of a ladder of techniques; ratios of tokens/s, and mean losses of the last steps."""
    results = content["results"]
    head = ["rung", "tokens/s", "x the one before", "x the first", "no padding", "step P50, ms"]
    head += ["step P99, ms", "waiting", "GPU busy", "memory", "compiling", f"loss, last {LAST}"]
    rows, bars = [], []
    for number, entry in enumerate(results):
        runs = entry["runs"]
        before, first = ratios(results, number)
        busy = [run["gpu_busy"] for run in runs if run.get("gpu_busy") is not None]
        compiling = median(run["compiled"]["seconds"] if "compiled" in run else 0 for run in runs)
        rate = Spread.of([run["tokens_per_s"] for run in runs])
        name = f"(aside) {entry['name']}" if entry["aside"] else entry["name"]
        rows.append(
            [
                name,
                f"{rate.median:,.0f} ({rate.low:,.0f}-{rate.high:,.0f})",
                _spread(before) if before else "",
                _spread(first),
                f"{median(run['fill'] for run in runs):.0%}",
                f"{1000 * median(run['step_p50'] for run in runs):,.0f}",
                f"{1000 * median(run['step_p99'] for run in runs):,.0f}",
                f"{median(run['wait_share'] for run in runs):.2%}",
                f"{median(busy):.1%}" if busy else "",
                f"{median(run['memory']['peak'] for run in runs) / 1e9:.2f} GB",
                f"{compiling:,.0f} s" if compiling else "",
                f"{median(fmean(run['losses'][-LAST:]) for run in runs):.3f}",
            ]
        )
        bars.append(
            Bar(name=name, value=rate.median, low=rate.low, high=rate.high, own=not entry["aside"])
        )
    chart = bar_chart(bars, title=content["title"], unit="tokens/s")
    shown = [number for number in range(len(head)) if any(row[number] for row in rows)]
    lines = [[row[number] for number in shown] for row in (head, *rows)]
    return _block(content, chart, _table(lines[0], lines[1:]))


def _attention(content: dict[str, Any]) -> str:
    """Tokens per second and peak memory of kernels, by length."""
    blocks = []
    for setting, lengths in content["settings"].items():
        names = [entry["name"] for entry in lengths[0]["results"] if entry["runs"]]
        rows = []
        for entry in lengths:
            by_name = {result["name"]: result for result in entry["results"]}
            row = [entry["shape"].partition(":")[0]]
            for name in names:
                rate = median(run["samples"] / run["seconds"] for run in by_name[name]["runs"])
                row.append(f"{rate:,.0f} ({entry['costs'][name]['peak'] / 1e6:,.0f} MB)")
            rows.append(row)
        blocks += [f"Tokens/s and peak memory, {setting}:", _table(["shape", *names], rows)]
    return _block(content, *blocks)


def _heats(content: dict[str, Any]) -> str:
    """Draw the heats of a race one after the other, each under its name."""
    heats = [
        _race({"title": name, "results": results, "references": ["cpu"], "unit": "img/s"})
        for name, results in content["heats"].items()
    ]
    return _block(content, *heats)


def _aims(content: dict[str, Any]) -> str:
    """Figures that were aimed for, and what was measured."""
    rows = [
        [
            aim["name"],
            "not measured" if aim["value"] is None else _number(aim["value"]),
            f"at {'most' if aim['most'] else 'least'} {_number(aim['wanted'])}",
        ]
        for aim in content["aims"]
    ]
    return _block(content, _table(["", "measured", "aim"], rows))


def _tune(content: dict[str, Any]) -> str:
    """Sweeps of `tune_workers` and of the textbooks' loop."""
    head = ["sweeps", "way", "right", "lost, mean", "lost, most", "seconds, median"]
    rows = []
    for sweeps in (name for name, value in content.items() if isinstance(value, list)):
        for way in dict.fromkeys(entry["way"] for entry in content[sweeps]):
            entries = [entry for entry in content[sweeps] if entry["way"] == way]
            judged = [entry["right"] for entry in entries if entry["right"] is not None]
            lost = [entry["lost"] for entry in entries if entry["lost"] is not None]
            rows.append(
                [
                    f"{len(entries)}: {sweeps}",
                    _bold(way),
                    f"{sum(judged)} of {len(judged)}" if judged else "",
                    f"{sum(lost) / len(lost):.1%}" if lost else "",
                    f"{max(lost):.1%}" if lost else "",
                    f"{median(entry['seconds'] for entry in entries):.1f}",
                ]
            )
    return _block(content, _table(head, rows))


def _remedies(content: dict[str, Any]) -> str:
    """Gains that `datapipe profile` predicts, beside measured ones."""
    head = ["loader", "remedy", "predicted", "measured", "error"]
    rows = [
        [
            remedy["case"],
            remedy["title"],
            f"{remedy['gain']:.2f}",
            _spread(Spread(**remedy["measured_gain"])),
            f"{remedy['error']:.0%}",
        ]
        for case in content["cases"]
        for remedy in case["remedies"]
        if remedy.get("measured_gain")
    ]
    return _block(content, _table(head, rows))


def _records(content: Any) -> str:
    """Format a list of flat records as in the file; numbers rounded to four digits."""
    rows = content
    if isinstance(content, dict):
        rows = content.get("rows") or content.get("rounds") or content.get("results")
    if rows is None:
        rows = [{key: value for key, value in content.items() if isinstance(value, int)}]
    head = [key.replace("_", " ") for key in rows[0]]
    return _block(content, _table(head, [[_number(value) for value in r.values()] for r in rows]))


def _tables(content: dict[str, Any]) -> str:
    """Tables of flat records, each under its name."""
    blocks = []
    for name, rows in content["tables"].items():
        if not rows:  # this part was not measured
            continue
        cells = [["" if v is None else _number(v) for v in row.values()] for row in rows]
        blocks += [f"{name}:", _table(list(rows[0]), cells)]
    return _block(content, *blocks)


_KINDS: dict[str, Callable[[Any], str]] = {
    "race": _race,
    "fill": _fill,
    "balance": _balance,
    "planning": _planning,
    "ladder": _ladder,
    "attention": _attention,
    "heats": _heats,
    "aims": _aims,
    "tune": _tune,
    "remedies": _remedies,
    "records": _records,
    "tables": _tables,
}


def _block(content: Any, *parts: str) -> str:
    """Put title and machine above what was drawn."""
    head = []
    if isinstance(content, dict):
        if title := content.get("title"):
            head.append(f"**{title}**")
        if machine := content.get("machine") or content.get("where"):
            head.append(_machine(machine))
    return "\n\n".join([*head, *parts])


def _machine(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {which}" for name, which in machine["versions"].items())
    gpu: str = machine.get("gpu", "not used")
    return (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']}, "
        f"Python {machine['python']}, page cache {machine['page cache']}"
        + f"; {gpu}" * (gpu != "not used")
        + f"; {versions}" * bool(versions)
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(map(str, line)) for line in (head, *rows)]
    return "\n".join(aligned([line + [""] * (len(head) - len(line)) for line in lines]))


def _spread(values: Spread) -> str:
    """Return median, least and most, which no line break parts."""
    return f"{values.median:.2f} ({values.low:.2f}\N{NON-BREAKING HYPHEN}{values.high:.2f})"


def _median(values: Spread | None, factor: float, digits: int = 2) -> str:
    return "" if values is None else f"{factor * values.median:.{digits}f}"


def _bold(name: str) -> str:
    return f"**{name}**" if name.startswith(("datapipe", "tune_workers")) else name


def _lengths(name: str) -> str:
    return f"images of {name} tokens" if name.isdigit() else name


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
