"""HTML pages in one file that needs nothing else: text, tables, figures as SVG."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from datapipe.report.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Level = Literal["good", "warn", "bad"]


class Page:
    """Parts of a report, top to bottom, as `page.html` shows them.

    All arguments are text, never HTML.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title, self._subtitle = title, subtitle
        self._parts: list[dict[str, Any]] = []

    def verdict(self, text: str, level: Level) -> None:
        self._parts.append({"verdict": text, "level": level})

    def text(self, paragraph: str) -> None:
        """Add a paragraph; text between backquotes is shown as code."""
        self._parts.append({"text": re.split("`([^`]*)`", paragraph)})  # every second is code

    def table(self, heading: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table, with the first column and those of words to the left."""
        words = [
            at == 0 or not any(sign.isdigit() for row in rows for sign in row[at][:3])
            for at in range(len(header))
        ]
        self._parts.append({"heading": heading, "header": header, "rows": rows, "words": words})

    def figure(self, heading: str, figure: Figure) -> None:
        """Add a figure of `charts.py`; the heading describes it to screen readers too."""
        self._parts.append({"heading": heading, "svg": _svg(figure)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page; a file of this name is replaced once the new one is whole."""
        from jinja2 import Environment  # takes a while, which `import datapipe.monitor` need not

        source = resources.files(__package__).joinpath("page.html").read_text("utf-8")
        template = Environment(autoescape=True, trim_blocks=True).from_string(source)
        page = template.render(title=self._title, subtitle=self._subtitle, parts=self._parts)
        write_whole(path, page, "report")


def _svg(figure: Figure) -> str:
    import matplotlib as mpl

    out = io.StringIO()
    # Text stays text, which is smaller and can be searched; equal figures give equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "datapipe"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
