"""Links between files of the repository as links between pages of the site."""

from __future__ import annotations

import posixpath
import re

from datapipe.errors import DatapipeError

ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files at the root of the repository that are pages of the site."""

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
"""The target of a relative link in Markdown: its path, then its anchor."""


class NoPage(DatapipeError):
    """A link to a file of the repository that the site does not have."""


def site_path(path: str) -> str | None:
    """Return where a file of the repository lies in the site, or None if it is not there."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if re.fullmatch(r"examples/(trainers/)?\w+\.(py|ipynb)", path):
        return posixpath.splitext(path)[0] + ".md"
    return None


def rewrite(markdown: str, source: str) -> str:
    """Return a page with its relative links as the site needs them.

    Args:
        markdown: the page.
        source: its path in the repository, such as "docs/loading.md".

    Raises:
        NoPage: a link leads to a file that is no page of the site.
    """
    page = site_path(source) or source

    def moved(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        target = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if target is None:
            raise NoPage(
                f"{source} links to {path}, which is no page of the site; "
                "name the file without a link, or add it to tools/docs_site/links.py"
            )
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor

    return LINK.sub(moved, markdown)
