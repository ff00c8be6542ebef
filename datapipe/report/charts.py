"""Figures of several reports, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from datapipe.errors import PlanError
from datapipe.extras import install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f6f9f", "#d98032", "#5b9a57", "#a8554e", "#7d6aa8", "#8a6f5a", "#c580b5", "#7f7f7f")
"""Colours of series, in this order; the colour-blind can tell them apart."""
IDLE, PALE, INK = "#e3e7ea", "#c9d0d5", "#1d2429"
_STAGES = ("read", "decode", "resize", "transform", "tokenize", "collate", "transfer", "plan")
STAGE_COLOURS = dict(zip(_STAGES, (*COLOURS[:7], "#555"), strict=True))
"""Colours of a loader's stages, the same in all reports."""

_SHOWN = 0.05  # of the width, from which on a part of a bar is labelled inside


def plot(height: float = 3.2) -> tuple[Figure, Axes]:
    """Make a figure with one pair of axes, 8 inches wide; `PlanError` without matplotlib."""
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise PlanError(
            f"reports are drawn by matplotlib, which is missing ({error}): "
            f"{install_command('report')}"
        ) from None
    figure = NewFigure(figsize=(8.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3, labelsize=8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_fontsize(8)
    return figure, axes


def legend(figure: Figure, colours: Mapping[str, str]) -> None:
    """Add a legend of colours above a figure, in one line."""
    from matplotlib.patches import Patch

    figure.legend(
        [Patch(color=colour) for colour in colours.values()],
        list(colours),
        loc="outside upper left",
        ncols=len(colours),
        frameon=False,
        fontsize=8,
        handlelength=1,
        columnspacing=1.2,
    )


def stacked(
    rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, str], unit: str = ""
) -> Figure:
    """Draw a horizontal bar for each row, made of parts; parts without a colour are pale.

    Without a `unit` for an axis, all bars have one length and show shares.
    """
    figure, axes = plot((0.95 if unit else 0.55) + (0.32 if unit else 0.62) * len(rows))
    used: dict[str, str] = {}
    for at, (_, parts) in enumerate(rows):
        total, left = (1.0 if unit else max(sum(parts.values()), 1e-9)), 0.0
        for name, value in parts.items():
            width = value / total
            colour = used.setdefault(name, colours.get(name, IDLE))
            axes.barh(at, width, left=left, height=0.62, color=colour)
            if not unit and width >= _SHOWN:
                ink = INK if colour in (IDLE, PALE) else "white"
                where = (left + width / 2, at, f"{width:.0%}")
                axes.text(*where, ha="center", va="center", fontsize=8, color=ink)
            left += width
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    if not unit:
        axes.set_xlim(0, 1)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
    legend(figure, used)
    return figure
