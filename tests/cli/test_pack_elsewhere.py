"""`datapipe pack RAW URL`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from .conftest import Run


@pytest.fixture
def raw(tmp_path: Path, make_folder: Any) -> Path:
    folder: Path = make_folder(tmp_path / "raw", 5)
    return folder


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    files = fsspec.filesystem("memory")
    yield f"memory://{tmp_path.name}/shards"
    if files.exists(f"/{tmp_path.name}"):
        files.rm(f"/{tmp_path.name}", recursive=True)


def test_a_url_is_packed_to_once(run: Run, raw: Path, url: str, tmp_path: Path) -> None:
    command = ["pack", raw, url, "--staging", tmp_path / "staging"]
    first = run(*command, "--json")
    assert json.loads(first.stdout)["output"] == url
    assert f"{url} is packed already, nothing to do" in run(*command).stdout


def test_a_dry_run_says_what_would_be(run: Run, raw: Path, url: str, tmp_path: Path) -> None:
    done = run("pack", raw, url, "--dry-run", "--staging", tmp_path / "staging")
    assert f"Would pack into {url}" in done.stdout
    assert not fsspec.filesystem("memory").exists(url)
    assert not (tmp_path / "staging").exists()


def test_tokens_are_not_counted_there(run: Run, raw: Path, url: str, tokenizer: Path) -> None:
    done = run("pack", raw, url, "--tokenizer", tokenizer, "--template", "caption")
    assert done.exit_code == 1
    assert "--tokenizer cannot count behind the URL" in done.stderr
    assert not fsspec.filesystem("memory").exists(url)


def test_what_cannot_be_written_is_said(run: Run, raw: Path) -> None:
    done = run("pack", raw, "https://host/shards")
    assert done.exit_code == 1
    assert "nothing can be written over HTTP" in done.stderr
