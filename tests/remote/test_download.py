"""Files of a remote folder are downloaded whole, wherever an earlier download ended."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import StoreError
from datapipe.remote import download as download_module
from datapipe.remote.download import RemoteFiles

from .server import serving

pytest.importorskip("aiohttp")

DATA = random.Random(7).randbytes(100_000)


@pytest.mark.parametrize("arrived", [0, 45_000, 100_000])
def test_a_download_goes_on_in_the_middle_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrived: int
) -> None:
    monkeypatch.setattr(download_module, "RANGE", 30_000)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.tar").write_bytes(DATA)
    path = tmp_path / "here" / "a.tar"
    path.parent.mkdir()
    path.write_bytes(DATA[:arrived])
    with serving(tmp_path / "there") as server:
        RemoteFiles(server.url).download("a.tar", len(DATA), path, ahead=2)
    assert [each.name for each in path.parent.iterdir()] == ["a.tar"]
    assert path.read_bytes() == DATA
    starts = sorted(int(str(span)[6:].partition("-")[0]) for _, span in server.asked)
    assert starts == list(range(arrived, len(DATA), 30_000))


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("../a.tar", 5, "leads elsewhere"), ("a.tar", None, "does not tell its size")],
)
def test_files_that_cannot_be_downloaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: Any, message: str
) -> None:
    async def look(names: Any) -> dict[str, dict[str, Any]]:
        return {name: {"size": size}}

    source = RemoteFiles(f"file://{tmp_path}")
    monkeypatch.setattr(source, "_look_at", look)
    with pytest.raises(StoreError, match=rf"{tmp_path}/{name}: .*{message}"):
        source.files()
