"""A bar chart of a race.

python -m benchmarks.plot RESULT.json CHART.svg
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.common import Result, Run

LIMIT = "limit: "
OWN = "datapipe"
_COLOURS = {True: "#1f6f8b", False: "#b9c4c9"}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    content = json.loads(source.read_text())
    results = [
        Result(
            name=entry["name"],
            note=entry["note"],
            missing=entry["missing"],
            runs=[Run(**run) for run in entry["runs"]],
        )
        for entry in content["results"]
    ]
    draw(results, title=content["title"], unit=content["unit"], path=target)


def draw(results: Sequence[Result], *, title: str, unit: str, path: Path) -> None:
    """Rates as bars, fastest first, with least and most of the rounds; limits as lines.

    Args:
        results: contestants whose name begins with LIMIT become lines; those without runs are
            named below the chart.
        title: above it.
        unit: of the rates.
        path: where it goes; the suffix says in which format.
    """
    ran = [result for result in results if result.runs]
    bars = sorted(
        (result for result in ran if not result.name.startswith(LIMIT)),
        key=lambda result: result.rate.median,
    )
    limits = [result for result in ran if result.name.startswith(LIMIT)]
    missing = [result.name for result in results if not result.runs]
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "datapipe"
    figure = Figure(figsize=(9, 1.6 + 0.36 * len(bars)), layout="constrained")
    axes = figure.subplots()
    names = [result.name for result in bars]
    rates = [result.rate for result in bars]
    axes.barh(
        names,
        [rate.median for rate in rates],
        xerr=[
            [rate.median - rate.low for rate in rates],
            [rate.high - rate.median for rate in rates],
        ],
        color=[_COLOURS[name == OWN] for name in names],
        error_kw={"elinewidth": 1, "ecolor": "#444444", "capsize": 2},
        height=0.7,
    )
    top = max(result.rate.high for result in ran)
    for row, rate in enumerate(rates):
        axes.text(
            rate.high + 0.01 * top,
            row,
            f"{rate.median:,.0f}",
            va="center",
            fontsize=9,
            # Readable where a limit's line runs behind it.
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            zorder=3,
        )
    for limit in limits:
        axes.axvline(limit.rate.median, color="#9b2d1f", linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            f"{limit.name.removeprefix(LIMIT)}\n{limit.rate.median:,.0f}",
            (limit.rate.median, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
            color="#9b2d1f",
        )
    axes.set_xlim(0, 1.08 * top)
    axes.set_xlabel(unit + f"; not run: {', '.join(missing)}" * bool(missing))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False)
    figure.suptitle(textwrap.fill(title, 105), fontsize=9, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
