"""Files of a remote folder are downloaded whole, wherever an earlier download ended."""

import random

import pytest

from datapipe import StoreError, pack_dataset
from datapipe.remote.download import RemoteFiles

from .server import serving

pytest.importorskip("aiohttp")

DATA = random.Random(7).randbytes(20 << 20)  # three ranges


@pytest.mark.parametrize("arrived", [0, 12 << 20, len(DATA)])
def test_a_download_goes_on_in_the_middle_of_a_file(tmp_path, arrived):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.tar").write_bytes(DATA)
    path = tmp_path / "here" / "a.tar"
    path.parent.mkdir()
    path.write_bytes(DATA[:arrived])
    with serving(tmp_path / "there") as server:
        RemoteFiles(server.url).download("a.tar", len(DATA), path, ahead=2)
    assert [each.name for each in path.parent.iterdir()] == ["a.tar"]
    assert path.read_bytes() == DATA
    spans = sorted(tuple(map(int, str(span)[6:].split("-"))) for _, span in server.asked)
    assert [first for first, _ in spans] == [arrived, *(last + 1 for _, last in spans)][
        : len(spans)
    ]
    assert len(spans) == -(-(len(DATA) - arrived) // (8 << 20))


def test_a_file_whose_server_tells_no_size_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    with serving(tmp_path) as server:
        server.fault = lambda number, name: "unsized"
        with pytest.raises(StoreError, match=f"{server.url}/a.jsonl.*does not tell its size"):
            pack_dataset(f"{server.url}/a.jsonl", tmp_path / "out", staging=tmp_path / "staging")


def test_a_name_that_leads_elsewhere_is_named(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "a.jpg").write_bytes(b"a")
    with pytest.raises(StoreError, match=r"/../a.jpg: '..' in a name leads elsewhere"):
        RemoteFiles(f"file://{tmp_path}/raw").files(["../a.jpg"])
