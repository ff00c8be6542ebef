"""The site: it is built without a warning, and a page asks no other server for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs `make docs`, or pip install '.[docs]'")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it: a broken link or anchor fails here."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=300,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return folder


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        content = page.read_text("utf-8")
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", content)
        loaded = [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)]
        assert loaded == [], page.name


def test_search_needs_no_server(site):
    assert (site / "search/search_index.js").stat().st_size > 100_000
    assert "assets/iframe-worker.js" in (site / "index.html").read_text("utf-8")


def test_public_names_and_figures_are_on_their_pages(site):
    assert 'id="datapipe.make_loader"' in (site / "api/load.html").read_text("utf-8")
    benchmarks = (site / "benchmarks.html").read_text("utf-8")
    assert benchmarks.count("<svg viewBox") > 10
    assert "<!-- figure" not in benchmarks
