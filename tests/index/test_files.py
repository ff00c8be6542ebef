"""Files of numbers: compared block by block, mapped while used, or read at many offsets."""

import gc
import os
import pickle
import time
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import IndexMismatch
from datapipe.index.files.block_checksums import BLOCK, SUMS, as_one_of, checked_files, write_sums
from datapipe.index.files.npy import HEADER, NpyFile, map_file, map_npy
from datapipe.index.files.random_read import gather, gather_counts, read_at
from datapipe.index.files.sealed_json import seal, unseal, unseal_lines
from datapipe.plan.ragged import spans
from tests.flipping import flip

KINDS = {"a.npy": "<i8", "b.npy": ("<f8", (4,)), "none.npy": "<i4"}
A = np.arange(5 * BLOCK // 8)
B = np.arange(3 * BLOCK // 8, dtype=np.float64).reshape(-1, 4)


@pytest.fixture
def files(tmp_path):
    """Opens the folder, as one of many datasets if its files should count as large."""
    for name, dtype, row, values in (
        ("a.npy", "<i8", (), A),
        ("b.npy", "<f8", (4,), B),
        ("none.npy", "<i4", (), A[:0]),
    ):
        file = NpyFile(tmp_path / name, dtype, row)
        file.append(values)
        file.close()
    sums = write_sums(tmp_path, KINDS)

    def opened(*, large=False):
        with as_one_of(1 << 40 if large else 1):
            return checked_files(tmp_path, KINDS, sums, remedy="make it anew")

    return opened


@pytest.mark.parametrize("large", [False, True])
def test_values_are_those_that_were_written(files, large):
    a, b, none = files(large=large).values()
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
        files()


def test_damage_of_large_files_is_found_when_it_is_touched(files, tmp_path):
    flip(tmp_path / "a.npy", 3 * BLOCK + 9)
    a = files(large=True)["a.npy"]
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


@pytest.mark.parametrize("by_position", [True, False])
def test_values_at_random_of_a_large_column_are_compared(files, tmp_path, by_position):
    a = files(large=True)["a.npy"]
    assert a.by_position
    a.by_position = by_position
    edge = (BLOCK - HEADER) // 8 - 1  # the value after it is in the next block
    numbers = np.array([edge, 3, len(A) - 2, edge, edge + 1, 0])
    for _ in range(2):
        assert gather(a, numbers).tolist() == A[numbers].tolist()
        assert gather_counts(a, numbers).tolist() == [1] * len(numbers)
    assert gather(a, numbers[:0]).tolist() == []
    with pytest.raises(IndexError):
        gather(a, np.array([len(A) + BLOCK]))
    flip(tmp_path / "a.npy", 2 * BLOCK + 9)
    with pytest.raises(IndexMismatch, match="between bytes 16,384 and 24,576"):
        gather(a, np.array([edge + 3 + BLOCK // 8]))


@pytest.mark.parametrize("name", ["a.npy", SUMS])
def test_files_that_are_cut_or_gone_are_named(files, tmp_path, name):
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-8])
    with pytest.raises(IndexMismatch, match="damaged"):
        files()
    (tmp_path / name).unlink()
    with pytest.raises(IndexMismatch, match=name):
        files()


def test_sealed_json_is_what_was_written_or_an_error():
    held = {"name": "größe", "pair": (1, 2), "nested": {"b": None, "a": 1.5}}
    text = seal(held)
    assert unseal(seal(held, indent=1).encode()) == unseal(text) == {**held, "pair": [1, 2]}
    for place in range(len(text)):
        for changed in (text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :], text[:place]):
            with suppress(ValueError):
                assert unseal(changed) == unseal(text)


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


def test_only_blocks_with_the_wanted_spans_are_compared(files):
    a = files(large=True)["a.npy"]
    starts, counts = spans(a, np.array([0, 3]))
    assert (starts.tolist(), counts.tolist()) == (
        A[[0, 3]].tolist(),
        (A[[1, 4]] - A[[0, 3]]).tolist(),
    )
    assert a.compared.tolist() == [True] + [False] * (len(a.compared) - 1)


@pytest.fixture
def path(tmp_path):
    file = NpyFile(tmp_path / "values.npy", "<i4", (2,))
    file.append(np.arange(6, dtype=np.int32).reshape(3, 2))
    file.close()
    return tmp_path / "values.npy"


def _is_mapped(path):
    return str(path) in Path("/proc/self/maps").read_text()


def test_values_are_those_of_the_file_and_read_only(path):
    whole, values = map_file(path), map_npy(path, "<i4", (2,))
    assert values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert whole.tobytes() == path.read_bytes()
    for array in (whole, values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
def test_a_file_is_mapped_as_long_as_an_array_of_it_is_held(path):
    values = map_npy(path, "<i4", (2,))[1:]
    again = map_npy(path, "<i4", (2,))
    gc.collect()
    assert values.tolist() == again[1:].tolist()
    del values
    gc.collect()
    assert _is_mapped(path)
    del again
    gc.collect()
    assert not _is_mapped(path)


@pytest.mark.parametrize("every", [1, 2])
def test_a_slow_disk_is_told_of_the_next_reads_and_not_of_one_slow_read_among_fast_ones(
    every, tmp_path, monkeypatch
):
    data = np.random.default_rng(0).bytes(40_000)
    (tmp_path / "data").write_bytes(data)
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: told.append(given[1]))
    clock = iter(range(10**6))
    # Each chunk of 16 reads takes a second, or every second one does.
    monkeypatch.setattr(time, "perf_counter", lambda: (next(clock) + 1) // (2 * every) * every)
    offsets = [*range(0, 40_000, 8)]
    reads = read_at(tmp_path / "data", offsets, 8)
    found = []
    for number, read in enumerate(reads):
        found.append(read)
        # The first is for the whole file. The first 64 reads show that the disk is slow.
        assert len(told) - 1 <= number + 1024
        assert number < 64 or every == 2 or len(told) > number - 64
    assert found == [data[offset : offset + 8] for offset in offsets]
    assert told[1:] == (offsets[64:] if every == 1 else [])
    assert list(read_at(tmp_path / "data", [], 8)) == []
