"""Hooks of MkDocs: they add generated pages, draw figures, and turn links between files into links
between pages.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs_site.command_page import command_page
from tools.docs_site.example_pages import example_pages
from tools.docs_site.figures import with_figures
from tools.docs_site.links import ROOT_PAGES, NoPage, rewrite

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/ and those that are generated."""
    for source, page in ROOT_PAGES.items():
        content = _rewritten((ROOT / source).read_text("utf-8"), source)
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, "cli.md", content=command_page()))
    for page, content in example_pages(ROOT / "examples").items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the figures of a page, turn its links, and give it the room that it needs."""
    if page.parent is None:  # the tabs have it already, so that wide tables get the room
        page.meta["hide"] = ["navigation"]
    if page.file.generated_by:
        return markdown
    markdown = with_figures(markdown, RESULTS)
    return _rewritten(markdown, f"docs/{page.file.src_uri}")


def _rewritten(markdown: str, source: str) -> str:
    try:
        return rewrite(markdown, source)
    except NoPage as error:
        raise PluginError(str(error)) from None
