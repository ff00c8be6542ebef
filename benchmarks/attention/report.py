"""Tables and curves of what kernels of attention took."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attention.measure import Cost
from benchmarks.common import Result, Spread, aligned

PADDED, PACKED = "padded", "packed"
_NONE = "-"


@dataclass(kw_only=True)
class Measured:
    """A setting at a length.

    Attributes:
        length: of each sequence, or of the longest.
        tokens: of a batch, without padding.
        shape: of the batch, in words.
        results: of each contestant; those of the packed setting are named "KERNEL padded" and
            "KERNEL packed".
        costs: of those that ran.
    """

    length: int
    tokens: int
    shape: str
    results: list[Result] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)

    def named(self, name: str) -> Result | None:
        """Return the contestant of that name, if it ran."""
        return next((one for one in self.results if one.name == name and one.runs), None)

    def step(self, result: Result) -> Spread:
        """Seconds of a step."""
        return Spread.of([self.tokens / run.rate for run in result.runs])

    def peak(self, result: Result) -> float:
        """Megabytes."""
        return self.costs[result.name].peak / 1e6


def print_tables(
    title: str, where: dict[str, Any], rows: Sequence[Measured], mixed: Sequence[Measured]
) -> None:
    """Print a table for each setting, and why some kernels are not in it."""
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    print(f"\n{title}")
    print(
        f"GPU {where['gpu']}; {where['cpu']}, {where['cores']} cores, load at the start "
        f"{where['load']}; Python {where['python']}, {versions}"
    )
    print("\nRows of one length\n")
    head = ["rows", "kernel", "ms (min-max)", "x plain", "peak MB", "plain's / its", "mask ms"]
    print(*aligned([head, *(line for at in rows for line in _row_lines(at))]), sep="\n")
    print("\nCaptions and conversations; time by the real token\n")
    head = ["longest", "kernel", "padded µs", "packed µs", "packed x padded", "packed x plain"]
    head += ["padded MB", "packed MB", "mask ms"]
    print(*aligned([head, *(line for at in mixed for line in _mixed_lines(at))]), sep="\n")
    print()
    print(*(f"- {at.length:,}: {at.shape}" for at in mixed), sep="\n")
    print("\nDid not run\n")
    print(*_absences([*rows, *mixed]), sep="\n")


def _row_lines(at: Measured) -> Iterator[list[str]]:
    plain = at.named("plain")
    for one in at.results:
        if one.runs:
            less = f"{at.peak(plain) / at.peak(one):.2f}" if plain else _NONE
            yield [
                *(at.shape, one.name, _spread(at.step(one), 1e3), _ratio(one, plain)),
                *(f"{at.peak(one):,.1f}", less, f"{1e3 * at.costs[one.name].mask:.2f}"),
            ]


def _mixed_lines(at: Measured) -> Iterator[list[str]]:
    plain = at.named(f"plain {PACKED}")
    kernels = dict.fromkeys(one.name.split()[0] for one in at.results if one.runs)
    for kernel in kernels:
        forms = [at.named(f"{kernel} {form}") for form in (PADDED, PACKED)]
        wide, tight = forms
        yield [
            *(f"{at.length:,}", kernel),
            *(_spread(at.step(one), 1e6 / at.tokens) if one else _NONE for one in forms),
            *(_ratio(tight, wide), _ratio(tight, plain)),
            *(f"{at.peak(one):,.1f}" if one else _NONE for one in forms),
            f"{1e3 * at.costs[tight.name].mask:.2f}" if tight else _NONE,
        ]


def _absences(measured: Sequence[Measured]) -> Iterator[str]:
    """Each reason once, with whom and where it kept from running."""
    reasons: dict[tuple[str, str], list[str]] = {}
    everywhere = dict.fromkeys(f"{at.length:,}" for at in measured)
    for at in measured:
        for one in (one for one in at.results if one.missing):
            reasons.setdefault((one.missing, one.name), []).append(f"{at.length:,}")
    for (reason, name), lengths in reasons.items():
        kernel, *form = name.split()
        if form and (reason, kernel) in reasons:
            continue  # said of the kernel already
        where = "" if lengths == [*everywhere] else f" at {', '.join(lengths)}"
        yield f"- {name}{where}: {reason}"
    if not reasons:
        yield "- none: all ran"


def _spread(spread: Spread, scale: float) -> str:
    return "{:,.2f} ({:,.2f}-{:,.2f})".format(*(scale * value for value in spread))


def _ratio(one: Result | None, other: Result | None) -> str:
    if one is None or other is None:
        return _NONE
    return "{:.2f} ({:.2f}-{:.2f})".format(*one.ratio(other))


def draw(rows: Sequence[Measured], mixed: Sequence[Measured], *, title: str, path: Path) -> None:
    """Time and memory by length, log-log; padded batches dashed.

    Args:
        rows, mixed: of the two settings.
        title: above it.
        path: where it goes; the suffix says in which format.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "datapipe"
    figure = Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    _curves(panels[0], rows, "rows of one length")
    _curves(panels[1], mixed, "captions and conversations, at most")
    for time, memory in panels:
        time.set_ylabel("µs by the real token")
        memory.set_ylabel("peak MB")
        time.legend(fontsize=8, frameon=False)
    figure.suptitle(textwrap.fill(title, 105), fontsize=9, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _curves(panels: Any, measured: Sequence[Measured], what: str) -> None:
    """Time into the first panel, memory into the second."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = dict.fromkeys(one.name for at in measured for one in at.results if one.runs)
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(n.split()[0] for n in names))}
    for name in names:
        ran = [(at, one) for at in measured if (one := at.named(name))]
        lengths = [at.length for at, _ in ran]
        style = {
            "color": colours[name.split()[0]],
            "linestyle": "--" if name.endswith(PADDED) else "-",
            "marker": "o",
            "markersize": 3,
            "label": name,
        }
        panels[0].plot(lengths, [1e6 * at.step(one).median / at.tokens for at, one in ran], **style)
        panels[1].plot(lengths, [at.peak(one) for at, one in ran], **style)
    ticks = [at.length for at in measured]
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.set_xlabel(f"tokens ({what})")
        panel.spines[["top", "right"]].set_visible(False)
