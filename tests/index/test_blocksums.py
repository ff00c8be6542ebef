"""What is mapped is compared block by block before it is used."""

import os
import pickle
from itertools import accumulate

import numpy as np
import pytest

from datapipe.errors import IndexMismatch
from datapipe.index.files import block_checksums
from datapipe.index.files.block_checksums import BLOCK, SUMS, CheckedFiles, write_sums
from datapipe.index.files.npy import HEADER, NpyFile
from datapipe.index.files.random_read import gather, gather_counts
from datapipe.index.files.sealed_json import seal, unseal, unseal_lines
from datapipe.plan.ragged import spans

KINDS = {"a.npy": "<i8", "b.npy": ("<f8", (4,)), "none.npy": "<i4"}
A = np.arange(5 * BLOCK // 8)
B = np.arange(3 * BLOCK // 8, dtype=np.float64).reshape(-1, 4)


@pytest.fixture
def files(tmp_path):
    """Opens the folder; `sums` is the checksum of the checksums."""
    for name, dtype, row, values in (
        ("a.npy", "<i8", (), A),
        ("b.npy", "<f8", (4,), B),
        ("none.npy", "<i4", (), A[:0]),
    ):
        file = NpyFile(tmp_path / name, dtype, row)
        file.append(values)
        file.close()
    sums = write_sums(tmp_path, KINDS)
    return lambda: CheckedFiles(tmp_path, KINDS, sums, remedy="make it anew")


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(block_checksums, "_WHOLE", -1)


@pytest.mark.parametrize("whole", [-1, 1 << 30])
def test_values_are_those_that_were_written(files, monkeypatch, whole):
    monkeypatch.setattr(block_checksums, "_WHOLE", whole)
    a, b, none = (files().array(name) for name in KINDS)
    some = np.array([3, len(A) - 1, 700, 3])
    assert np.array_equal(a, A)
    assert np.array_equal(b, B)
    assert len(none) == 0
    assert (a[5], a[-1], len(a), a.dtype) == (A[5], A[-1], len(A), A.dtype)
    assert a[some].tolist() == A[some].tolist()
    assert a[10:2000:7].tolist() == A[10:2000:7].tolist()
    assert a[2000:10:-7].tolist() == A[2000:10:-7].tolist()
    assert a[A % 1000 == 0].tolist() == A[A % 1000 == 0].tolist()
    assert gather(a, some).tolist() == A[some].tolist()
    assert gather_counts(a, some[:1]).tolist() == [1]
    assert int(a.sum()) == int(np.sum(a)) == int(A.sum())
    assert b[2:4].tolist() == B[2:4].tolist()
    with pytest.raises(IndexError):
        a[len(A)]


@pytest.mark.parametrize("name", ["a.npy", "b.npy", SUMS])
@pytest.mark.parametrize("place", [0, 60, HEADER, -1])
def test_damage_is_found_when_small_files_are_opened(files, tmp_path, name, place):
    flip(tmp_path / name, place)
    with pytest.raises(IndexMismatch, match=rf"{name} is damaged.*; make it anew"):
        [files().array(kind) for kind in KINDS]


def test_damage_of_large_files_is_found_when_it_is_touched(files, tmp_path, large):
    flip(tmp_path / "a.npy", 3 * BLOCK + 9)
    a = files().array("a.npy")
    inside = (3 * BLOCK + 9 - HEADER) // 8
    assert a[: inside - BLOCK // 8].tolist() == A[: inside - BLOCK // 8].tolist()
    for touch in (
        lambda: a[inside],
        lambda: a[inside - 1 : inside + 1],
        lambda: a[np.array([0, inside])],
        lambda: gather(a, np.array([inside])),
        lambda: np.asarray(a),
        lambda: pickle.loads(pickle.dumps(a))[inside],
    ):
        with pytest.raises(IndexMismatch, match=r"between bytes 24,576 and 32,768: it is not what"):
            touch()


def test_values_at_random_of_a_large_column_are_read_by_position(
    files, tmp_path, large, monkeypatch
):
    monkeypatch.setattr(block_checksums, "_LARGE", 0)
    a = files().array("a.npy")
    assert a.by_position
    edge = (BLOCK - HEADER) // 8 - 1  # the value after it is in the next block
    numbers = np.array([edge, 3, len(A) - 2, edge, edge + 1, 0])
    for _ in range(2):
        assert gather(a, numbers).tolist() == A[numbers].tolist()
        assert gather_counts(a, numbers).tolist() == [1] * len(numbers)
    assert gather(a, numbers[:0]).tolist() == []
    with pytest.raises(IndexError):
        gather(a, np.array([len(A) + BLOCK]))
    flip(tmp_path / "a.npy", BLOCK + 9)
    with pytest.raises(IndexMismatch, match="between bytes 8,192 and 16,384"):
        gather(a, np.array([edge + 3]))


def test_a_slow_disk_is_told_of_the_blocks_of_all_values_before_it_reads_them_one_by_one(
    files, large, monkeypatch
):
    monkeypatch.setattr(block_checksums, "_LARGE", 0)
    monkeypatch.setattr(block_checksums, "_AT_ONCE", 2)  # blocks that are read together
    monkeypatch.setattr("datapipe.index.files.read_at._SLOW", -1.0)
    monkeypatch.setattr("datapipe.index.files.read_at._HANDED_OVER", 1)
    monkeypatch.setattr("datapipe.index.files.read_at._CERTAIN", 1)
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: told.append(arguments[1:]))
    a = files().array("a.npy")
    starts = np.minimum(np.arange(len(a.compared)) * BLOCK // 8, len(A) - 1)
    assert gather(a, starts).tolist() == A[starts].tolist()
    ahead = [offset for offset, _, advice in told if advice == os.POSIX_FADV_WILLNEED]
    assert ahead == [block * BLOCK for block in range(1, len(a.compared))]


@pytest.mark.parametrize("name", ["a.npy", SUMS])
def test_files_that_are_cut_or_gone_are_named(files, tmp_path, name):
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-8])
    with pytest.raises(IndexMismatch, match="damaged"):
        files().array("a.npy")
    (tmp_path / name).unlink()
    with pytest.raises(IndexMismatch, match=name):
        files().array("a.npy")


def test_sealed_json_is_what_was_written_or_an_error():
    held = {"name": "größe", "pair": (1, 2), "nested": {"b": None, "a": 1.5}}
    text = seal(held)
    assert unseal(text) == {**held, "pair": [1, 2]}
    assert unseal(seal(held, indent=1).encode()) == unseal(text)
    for place in range(len(text)):
        for changed in (text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :], text[:place]):
            try:
                assert unseal(changed) == unseal(text)
            except ValueError:
                continue


def test_sealed_lines_end_at_damage():
    lines = [seal({"line": number}) + "\n" for number in range(4)]
    whole = "".join(lines).encode()
    assert unseal_lines(whole) == (
        [{"line": number} for number in range(4)],
        list(accumulate(map(len, lines))),
    )
    assert unseal_lines(whole[:-3])[0][-1] == {"line": 2}
    assert unseal_lines(whole.replace(b'"line": 1', b'"line": 7')) == (
        [{"line": 0}],
        [len(lines[0])],
    )
    assert unseal_lines(b"") == ([], [])


def test_only_blocks_with_the_wanted_spans_are_compared(files, large):
    a = files().array("a.npy")
    starts, counts = spans(a, np.array([0, 3]))
    assert (starts.tolist(), counts.tolist()) == (
        A[[0, 3]].tolist(),
        (A[[1, 4]] - A[[0, 3]]).tolist(),
    )
    assert a.compared.tolist() == [True] + [False] * (len(a.compared) - 1)
