"""Remote datasets: the same batches as from here, read ahead, whatever goes wrong."""

import os
import shutil
import time
from collections import Counter

import pytest

import datapipe
from datapipe import ImageSpec, IndexMismatch, StoreError
from datapipe.index.rows import Member
from datapipe.remote.retry import RetryPolicy
from datapipe.store.remote import ByteSpan, join
from datapipe.testing import assert_resumes_exactly, assert_same_batches
from tests.waiting import wait_until

from ..remote.server import serving

pytest.importorskip("aiohttp")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def server(packed):
    with serving(packed) as server:
        yield server


@pytest.fixture
def make_remote(server):
    def make_loader(retry=None, url=server.url, **options):
        if not options.keys() & {"pack", "max_tokens"}:
            options.setdefault("batch_size", 4)
        options = {"num_workers": 2, "image": ImageSpec(size=32)} | options
        loader = datapipe.make_loader(url, **options)
        if retry is not None:
            loader.dataset.folder.options.__dict__["retry"] = retry
        return loader

    return make_loader


def requests(server):
    return [name for name, _ in server.asked if name.endswith(".tar")]


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0, "shuffle": "shards", "remote": datapipe.RemoteSpec(read_ahead=0)},
        {"workers": "processes", "shuffle": False},
        {"where": "width > 180"},
    ],
    ids=str,
)
def test_batches_are_those_from_here(make, make_remote, options):
    with make_remote(**options) as loader:
        assert_same_batches(loader, make(**options))


def test_resuming_is_exact(make_remote):
    assert_resumes_exactly(make_remote, stops=(0.4,), world_sizes=(1, 2))


def test_a_state_goes_from_here_to_there(make, make_remote):
    here, there = make(), make_remote()
    iterator = iter(here)
    next(iterator)
    there.load_state_dict(here.state_dict())
    assert_same_batches(there, list(iterator))


def test_the_index_is_fetched_once(make_remote, server):
    list(make_remote(image=None))
    first = [name for name, _ in server.asked]
    server.asked.clear()
    list(make_remote(image=None))
    assert sum(name.endswith(".parquet") for name in first) == 5
    again = [name for name, _ in server.asked if not name.endswith(".tar")]
    assert again == ["dataset.json"]


def test_neighbours_are_read_together_in_the_order_of_need(make_remote, server):
    options = {"shuffle": False, "batch_size": 8, "drop_last": True}
    list(make_remote(remote=datapipe.RemoteSpec(concurrency=1), **options))
    assert len(requests(server)) == 4  # a step of 8 is a shard
    assert requests(server) == sorted(requests(server))


@pytest.mark.parametrize("read_ahead", [0, "1GB"])
def test_so_many_bytes_are_read_ahead(make_remote, server, read_ahead):
    remote = datapipe.RemoteSpec(read_ahead=read_ahead)
    # The one that was given out, those that workers were given, and one that is always ahead.
    few = 4
    with make_remote(shuffle=False, batch_size=1, prefetch_factor=1, remote=remote) as loader:
        next(iter(loader))
        if read_ahead:
            wait_until(lambda: len(requests(server)) > few)
        else:
            time.sleep(0.2)
            assert len(requests(server)) <= few


def test_a_broken_server_ends_the_loop_and_says_why(make_remote, server):
    loader = make_remote(retry=RetryPolicy(attempts=2, first_pause=0.001))
    server.fault = lambda number, name: "503"
    with pytest.raises(StoreError, match=r"shard-00000\d.tar, bytes .*HTTP 503.*attempt 2 of 2"):
        list(loader)


def test_faults_now_and_then_do_not_show(make, make_remote, server):
    loader = make_remote(retry=RetryPolicy(first_pause=0.001))
    tries = Counter()

    def fault(number, name):
        asked = server.asked[number - 1]
        tries[asked] += 1
        # Each of them is answered in the end, or the test would be of luck.
        return ("503", "cut", "slow", None)[number % 4] if tries[asked] <= 4 else None

    server.fault = fault
    assert_same_batches(loader, make())
    assert loader.dataset.folder.traffic.retries > 0


def test_what_is_no_dataset_is_refused(make_remote, server):
    with pytest.raises(IndexMismatch, match=r"/nowhere has no dataset.json"):
        make_remote(url=f"{server.url}/nowhere")


def test_an_index_of_another_dataset_is_refused_and_a_shard_that_was_cut_off_named(
    make_remote, packed, tmp_path
):
    other = shutil.copytree(packed, tmp_path / "other")
    shutil.copy(packed / "shard-000000.parquet", other / "shard-000001.parquet")
    with (
        serving(other) as server,
        pytest.raises(IndexMismatch, match=r"shard-000001.parquet is not the index"),
    ):
        make_remote(url=server.url)
    shutil.copy(packed / "shard-000001.parquet", other)
    os.truncate(other / "shard-000002.tar", 9000)
    with serving(other) as server:
        loader = make_remote(RetryPolicy(attempts=2, first_pause=0.001), url=server.url)
        with pytest.raises(StoreError, match=r"shard-000002.tar"):
            list(loader)


def test_neighbours_become_one_span_and_strangers_do_not():
    far = 10 << 20
    samples = [
        (1, [(far, 500), (far + 1000, 500)]),
        (0, [(0, 100)]),
        (1, [(512, 100)]),
        (0, [(100 + (64 << 10), 100), (50 << 20, 9 << 20)]),
        (0, []),
    ]
    assert join(
        (shard, [Member("jpg", *at, None) for at in places]) for shard, places in samples
    ) == [
        ByteSpan(1, far, far + 1500),
        ByteSpan(0, 0, 200 + (64 << 10)),
        ByteSpan(1, 512, 612),
        ByteSpan(0, 50 << 20, 59 << 20),
    ]


@pytest.mark.parametrize(
    "places",
    [
        {"memory": "64MB"},
        {"memory": "64MB", "device": "64MB"},
        {"memory": "60KB", "disk": "kept"},
    ],
    ids=str,
)
def test_what_a_cache_has_is_not_asked_for_again(
    make_remote, server, tmp_path, monkeypatch, places
):
    monkeypatch.chdir(tmp_path)
    device = "cpu" if "device" in places else None
    loader = make_remote(cache=datapipe.CacheSpec(**places), device=device)
    expected = list(loader)
    assert requests(server)
    if device is not None:
        list(loader)  # texts are read when images alone are there
    asked = len(requests(server))
    list(loader)
    assert len(requests(server)) == asked
    loader.set_epoch(0)
    assert_same_batches(loader, expected)


def test_workers_that_wait_for_the_source_are_counted(make_remote, server):
    def late(number, name):
        if name.endswith(".tar"):
            time.sleep(1)  # much longer than workers take to start and ask for a sample

    server.fault = late
    loader = make_remote(cache=datapipe.CacheSpec(memory="64MB"))
    list(loader)
    assert loader.stats()["source"].stalls > 0
    assert loader.stats()["source"].stalled > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_was_left_or_closed_reads_again(make_remote, workers):
    loader = make_remote(num_workers=workers)
    for _ in range(2):
        next(iter(loader))
        assert len(list(loader)) == len(loader)
        loader.close()
