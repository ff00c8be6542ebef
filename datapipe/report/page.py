"""HTML pages in one file that needs nothing else: text, tables, figures as SVG."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Literal

from datapipe.report.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Level = Literal["good", "warn", "bad"]

# Matplotlib's figures know one background, so theirs stays white in the dark.
_STYLE = """
:root { --ink: #1d2429; --soft: #5c6870; --line: #dde2e6; --page: #f6f7f8; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ea; --soft: #9aa6ad; --line: #343c42; --page: #14181b; --card: #1d2327; }
}
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 60rem; color: var(--ink);
  background: var(--page); font: 15px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .5rem 0; max-width: 48rem; }
.subtitle { color: var(--soft); }
.verdict { border-left: 6px solid; border-radius: 4px; background: var(--card);
  padding: .8rem 1.1rem; margin: 1.2rem 0; font-size: 1.1rem; max-width: none; }
.good { border-color: #4f9d58; } .warn { border-color: #d9a032; } .bad { border-color: #c1483c; }
figure { margin: 0; padding: .6rem; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; }
figure svg { display: block; width: 100%; height: auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; background: var(--card); border: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child, .words { text-align: left; }
td.words { white-space: normal; }
code { font-size: .92em; }
"""


class Page:
    """Parts of a report, top to bottom. All arguments are text, never HTML."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]
        if subtitle:
            self._parts.append(f'<p class="subtitle">{escape(subtitle)}</p>')

    def verdict(self, text: str, level: Level) -> None:
        self._parts.append(f'<p class="verdict {level}">{escape(text)}</p>')

    def text(self, paragraph: str) -> None:
        """Add a paragraph; text between backquotes is shown as code."""
        marked = re.sub("`([^`]*)`", r"<code>\1</code>", escape(paragraph))
        self._parts.append(f"<p>{marked}</p>")

    def table(self, heading: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table, with the first column and those of words to the left."""
        words = [
            at == 0 or not any(sign.isdigit() for row in rows for sign in row[at][:3])
            for at in range(len(header))
        ]
        lines = [_row("th", header, words)]
        lines += [_row("td", row, words) for row in rows]
        self._parts.append(f"<h2>{escape(heading)}</h2>")
        self._parts.append(f'<div class="table"><table>{"".join(lines)}</table></div>')

    def figure(self, heading: str, figure: Figure) -> None:
        """Add a figure of `charts.py`; the heading describes it to screen readers too."""
        label = escape(heading, quote=True)
        self._parts.append(f"<h2>{label}</h2>")
        self._parts.append(f'<figure role="img" aria-label="{label}">{_svg(figure)}</figure>')

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page; a file of this name is replaced once the new one is whole."""
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>"
            f"<body>{''.join(self._parts)}</body></html>\n"
        )
        write_whole(path, page, "report")


def _svg(figure: Figure) -> str:
    import matplotlib as mpl

    out = io.StringIO()
    # Text stays text, which is smaller and can be searched; equal figures give equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "datapipe"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _row(tag: str, cells: Sequence[str], words: Sequence[bool]) -> str:
    inner = "".join(
        f'<{tag} class="words">{escape(cell)}</{tag}>' if word else f"<{tag}>{escape(cell)}</{tag}>"
        for cell, word in zip(cells, words, strict=True)
    )
    return f"<tr>{inner}</tr>"
