"""Packing on a Ray cluster of several nodes on one machine: the bytes of one machine."""

from __future__ import annotations

import pytest

from datapipe import pack_dataset

ray = pytest.importorskip("ray")

OPTIONS = {"shard_size": 70, "max_rejects": 9}


@pytest.fixture(scope="module")
def raw(tmp_path_factory, make_folder, make_broken):
    raw = make_folder(tmp_path_factory.mktemp("raw"), 400)
    make_broken(raw)
    return raw


@pytest.fixture(scope="module")
def whole(tmp_path_factory, raw, contents):
    """Every file of a pack by this machine's processes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    pack_dataset(raw, out, workers=1, **OPTIONS)
    return contents(out)


def test_a_cluster_is_started_and_ended_and_the_bytes_are_equal(tmp_path, raw, whole, contents):
    report = pack_dataset(raw, tmp_path / "out", engine="ray", workers=2, **OPTIONS)
    assert (report.samples, report.rejected, report.lost) == (400, 4, 0)
    assert contents(tmp_path / "out") == whole
    assert not ray.is_initialized()
