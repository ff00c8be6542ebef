"""Table and drawing of a ladder of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import Spread

LAST = 4  # steps whose mean loss is given: a single step is of a single batch
_HEAD = (
    "| rung | samples/s | tokens/s | x the one before | x the first | no padding | step P50, P99, "
    "ms | waiting | GPU busy | memory | compiling | loss at last | mean of the last "
    f"{LAST} |"
)


def ratios(results: Sequence[dict[str, Any]], number: int) -> tuple[Spread | None, Spread]:
    """Tokens a second against the rung before, and against the first, within each round."""

    def against(other: int) -> Spread:
        pairs = zip(results[number]["runs"], results[other]["runs"], strict=True)
        return Spread.of([own["tokens_per_s"] / its["tokens_per_s"] for own, its in pairs])

    before = [i for i in range(number) if not results[i]["aside"]]
    return (against(before[-1]) if before else None), against(0)


def figures(result: dict[str, Any]) -> dict[str, Spread]:
    """Return what a rung gives beside its speed, over its rounds."""
    runs = result["runs"]
    return {
        "memory": Spread.of([run["memory"]["peak"] / 1e9 for run in runs]),
        "compiling": Spread.of([run["compiled"]["seconds"] for run in runs]),
        "last": Spread.of([run["losses"][-1] for run in runs]),
        "mean": Spread.of([fmean(run["losses"][-LAST:]) for run in runs]),
    }


def table(title: str, where: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """Format the ladder as Markdown."""
    gpu = f"{where['gpu']}; " if "gpu" in where else ""
    lines = [
        f"\n{title}",
        f"{gpu}{where['cpu']}, {where['cores']} cores; load at the end {where['load']}\n",
        _HEAD,
        "|---" * (_HEAD.count("|") - 1) + "|",
    ]
    for number, result in enumerate(results):

        def middle(name: str, runs: Sequence[dict[str, Any]] = result["runs"]) -> float:
            return Spread.of([run[name] for run in runs]).median

        before, first = ratios(results, number)
        beside = {name: spread.median for name, spread in figures(result).items()}
        cells = [
            named(result),
            f"{middle('samples_per_s'):,.1f}",
            f"{middle('tokens_per_s'):,.0f}",
            _ratio(before) if before else "",
            _ratio(first),
            f"{middle('fill'):.1%}",
            f"{middle('step_p50') * 1e3:,.0f}, {middle('step_p99') * 1e3:,.0f}",
            f"{middle('wait_share'):.2%}",
            f"{middle('gpu_busy'):.1%}" if "gpu" in where else "-",
            f"{beside['memory']:.2f} GB",
            f"{beside['compiling']:,.0f} s" if beside["compiling"] else "",
            f"{beside['last']:.3f}",
            f"{beside['mean']:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def named(result: dict[str, Any]) -> str:
    """Return the name of a rung, and whether it is one aside."""
    return ("(aside) " if result["aside"] else "") + str(result["name"])


def _ratio(spread: Spread) -> str:
    if spread.low == spread.high:
        return f"{spread.median:.2f}"
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def draw(title: str, results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw speed, memory and loss of every rung, the first at the top."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "datapipe"  # the same data give the same file
    figure = Figure(figsize=(12, 1.4 + 0.38 * len(results)), layout="constrained")
    speed, memory, loss = figure.subplots(1, 3, sharey=True, width_ratios=(4, 1.2, 1.2))
    names = [named(result) for result in results]
    colours = ["#b9c4c9" if result["aside"] else "#1f6f8b" for result in results]
    _draw_speed(speed, names, colours, results)
    beside = [figures(result) for result in results]
    memory.barh(names, [each["memory"].median for each in beside], color=colours)
    memory.set_xlabel("peak memory, GB")
    loss.plot([each["mean"].median for each in beside], names, "o", color="#1f6f8b")
    loss.set_xlabel(f"loss, last {LAST}")
    loss.grid(axis="y", color="#e3e7e9")
    speed.invert_yaxis()  # of all three
    for panel in (speed, memory, loss):
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    head, _, tail = title.partition(": ")
    figure.suptitle(f"{head}\n{tail}", fontsize=9, x=0.01, ha="left", wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_speed(
    axes: Any, names: list[str], colours: list[str], results: Sequence[dict[str, Any]]
) -> None:
    """Tokens a second as bars; padding shown behind them."""
    rates = [Spread.of([run["tokens_per_s"] for run in r["runs"]]) for r in results]
    whole = [
        Spread.of([run["tokens_per_s"] / run["fill"] for run in r["runs"]]).median for r in results
    ]
    axes.barh(names, whole, color="#e3e7e9", label="with padding")
    axes.barh(
        names,
        [rate.median for rate in rates],
        xerr=[
            [rate.median - rate.low for rate in rates],
            [rate.high - rate.median for rate in rates],
        ],
        color=colours,
        ecolor="#555555",
        label="tokens of samples",
    )
    for row, rate in enumerate(rates):
        first = ratios(results, row)[1].median
        axes.text(
            max(whole[row], rate.high), row, f"  {rate.median:,.0f}  x{first:.2f}", va="center"
        )
    axes.margins(x=0.18)
    axes.set_xlabel("tokens a second (least to most of the rounds)")
