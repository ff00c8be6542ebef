"""Fixtures of several modules of tests."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datapipe.index.manifest import Manifest

from .token_counts import make_manifest


@pytest.fixture
def manifest() -> Manifest:
    """A manifest of four shards, of which one is empty."""
    return make_manifest([5, 1, 0, 7])


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A function that lets nothing be made in a folder, not even by root; `cache/` is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def denied(folder: Path, code: int = errno.EROFS) -> None:
        mkdtemp, mkdir, access = tempfile.mkdtemp, Path.mkdir, os.access

        def check(parent: Any) -> None:
            if Path(parent) == folder:
                raise OSError(code, os.strerror(code))

        def make_temporary(prefix: str, dir: Any) -> str:
            check(dir)
            return mkdtemp(prefix=prefix, dir=dir)

        def make(path: Path, *args: Any, **options: Any) -> None:
            check(path.parent)
            mkdir(path, *args, **options)

        def may(path: Any, mode: int, **options: Any) -> bool:
            writes = mode & os.W_OK and Path(path).absolute() == folder
            return access(path, mode, **options) and not writes

        monkeypatch.setattr(tempfile, "mkdtemp", make_temporary)
        monkeypatch.setattr(Path, "mkdir", make)
        monkeypatch.setattr(os, "access", may)

    return denied
