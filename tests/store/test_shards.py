"""Reading members of shards by position, with a bounded number of open files."""

import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from datapipe.errors import StoreError
from datapipe.index.rows import Member
from datapipe.store.shards import ShardStore
from tests.waiting import PATIENCE

SIZE = 200_000


def content(shard):
    return bytes((shard * 31 + place) % 251 for place in range(1000)) * (SIZE // 1000)


@pytest.fixture
def folder(tmp_path):
    for shard in range(12):
        (tmp_path / f"{shard}.tar").write_bytes(content(shard))
    return tmp_path


def store_of(folder, limit):
    """A store that is made while the process may open so many files."""
    given = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, given[1]))
    try:
        return ShardStore(folder, [f"{shard}.tar" for shard in range(12)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, given)


@pytest.fixture
def store(folder):
    """A store of three open files, an eighth of what the process may open."""
    with closing(store_of(folder, 24)) as store:
        yield store


def member(offset, size):
    return Member("jpg", offset, size, None)


def open_files(folder):
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return found


@pytest.mark.parametrize(
    "places", [[(0, 10), (10, 20), (50, 0)], [(199_000, 1000), (0, 1000)], [(100, 5)] * 2, []]
)
def test_members_come_in_the_order_asked_for(store, places):
    read = store.read(5, [member(*place) for place in places])
    assert [bytes(data) for data in read] == [content(5)[at : at + n] for at, n in places]


def test_an_eighth_of_the_files_that_the_process_may_open_is_open(folder):
    for limit, most in ((24, 3), (16, 2), (7, 1), (4096, 12)):
        store = store_of(folder, limit)
        for shard in [*range(12), *range(12)]:
            assert bytes(store.read(shard, [member(7, 5)])[0]) == content(shard)[7:12]
            assert open_files(folder) <= most
        assert open_files(folder) == most
        store.close()
        assert open_files(folder) == 0


def test_no_destructor_in_python_closes_files_as_it_would_lose_an_interrupt(store, folder):
    called = []
    store.read(3, [member(0, 10)])
    assert open_files(folder) == 1
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: event == "call" and called.append(frame.f_code.co_name))
    store.close()
    sys.setprofile(before)
    assert (called, open_files(folder)) == (["close"], 0)


def test_workers_that_open_one_shard_at_once_share_it(store, folder):
    start = threading.Barrier(4)

    def read(shard):
        start.wait(PATIENCE)
        return bytes(store.read(shard, [member(0, 3)])[0])

    with ThreadPoolExecutor(4) as pool:
        for shard in range(12):
            assert {*pool.map(read, [shard] * 4)} == {content(shard)[:3]}
            assert open_files(folder) <= 3


def test_threads_read_right_while_files_are_closed_for_others(store):
    def read(number):
        shard, at = number % 12, number * 37 % 1000
        return bytes(store.read(shard, [member(at, 99)])[0]) == content(shard)[at : at + 99]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(600)))


def test_a_shard_that_is_gone_or_cut_off_is_named(store, folder):
    (folder / "1.tar").unlink()
    with pytest.raises(StoreError, match=r"1\.tar cannot be opened: No such file"):
        store.read(1, [member(0, 1)])
    with pytest.raises(StoreError, match=r"2\.tar ends before byte 200,001"):
        store.read(2, [member(SIZE - 9, 10)])
