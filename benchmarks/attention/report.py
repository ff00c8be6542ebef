"""Measures of kernels of attention, and their curves."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention.measure import PADDED, Measured


def absences(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield each reason once, with the kernels and lengths that it kept from running."""
    reasons: dict[tuple[str, str], list[str]] = {}
    everywhere = list(dict.fromkeys(f"{at.length:,}" for at in measured))
    for at in measured:
        for one in (one for one in at.results if one.missing):
            reasons.setdefault((one.missing, one.name), []).append(f"{at.length:,}")
    for (reason, name), lengths in reasons.items():
        kernel, *form = name.split()
        if form and (reason, kernel) in reasons:
            continue  # said of the kernel already
        where = "" if lengths == everywhere else f" at {', '.join(lengths)}"
        yield f"{name}{where} did not run: {reason}"


def draw(rows: Sequence[Measured], mixed: Sequence[Measured], *, title: str, path: Path) -> None:
    """Draw time and memory by length of both settings, log-log; padded batches dashed."""
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
