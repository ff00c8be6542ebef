"""Reading members of shards by position, with a bounded number of open files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import datapipe.store.shards as shards_module
from datapipe.errors import StoreError
from datapipe.index.rows import Member
from datapipe.store.shards import ShardStore

SIZE = 200_000


def content(shard: int) -> bytes:
    return bytes((shard * 31 + place) % 251 for place in range(1000)) * (SIZE // 1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(12):
        (tmp_path / f"{shard}.tar").write_bytes(content(shard))
    return tmp_path


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardStore]:
    monkeypatch.setattr(shards_module, "_MOST_OPEN", 3)
    with closing(ShardStore(folder, [f"{shard}.tar" for shard in range(12)])) as store:
        yield store


def member(offset: int, size: int) -> Member:
    return Member("jpg", offset, size, None)


def open_files(folder: Path) -> int:
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "places",
    [
        [(0, 10)],
        [(0, 10), (10, 20), (50, 0)],
        [(199_000, 1000), (0, 1000)],
        [(100, 5), (50, 5), (100, 5)],
        [],
    ],
)
def test_members_come_in_the_order_asked_for(store: ShardStore, places) -> None:
    read = store.read(5, [member(*place) for place in places])
    assert [bytes(data) for data in read] == [content(5)[at : at + n] for at, n in places]


def test_few_files_are_open_however_many_shards_are_read(store: ShardStore, folder: Path) -> None:
    for shard in [*range(12), *range(12)]:
        assert bytes(store.read(shard, [member(7, 5)])[0]) == content(shard)[7:12]
        assert open_files(folder) <= 3
    store.close()
    assert open_files(folder) == 0


def test_a_low_limit_of_the_process_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module.resource, "getrlimit", lambda which: (16, 16))
    store = ShardStore(folder, [f"{shard}.tar" for shard in range(12)])
    for shard in range(12):
        store.read(shard, [member(0, 1)])
    assert open_files(folder) == 2
    store.close()


def test_workers_that_open_one_shard_at_once_share_it(
    store: ShardStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=60)
    opened = ShardStore._open_shard

    def slowly(self: ShardStore, shard: int) -> int:
        both.wait()  # a lock around it would keep the other one away
        return opened(self, shard)

    monkeypatch.setattr(ShardStore, "_open_shard", slowly)
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda at: store.read(4, [member(at, 3)])[0], (0, 100)))
    assert [bytes(part) for part in parts] == [content(4)[:3], content(4)[100:103]]
    assert open_files(folder) == 1
    store.close()
    assert open_files(folder) == 0


def test_threads_read_right_while_files_are_closed_for_others(store: ShardStore) -> None:
    def read(number: int) -> bool:
        shard, at = number % 12, number * 37 % 1000
        return bytes(store.read(shard, [member(at, 99)])[0]) == content(shard)[at : at + 99]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(2000)))


def test_a_shard_that_is_gone_or_cut_off_is_named(store: ShardStore, folder: Path) -> None:
    (folder / "1.tar").unlink()
    with pytest.raises(StoreError, match=r"1\.tar cannot be opened: No such file"):
        store.read(1, [member(0, 1)])
    with pytest.raises(StoreError, match=r"2\.tar ends before byte 200,001"):
        store.read(2, [member(SIZE - 9, 10)])
