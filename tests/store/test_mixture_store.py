"""Samples of several datasets from one store, whichever of them are here and elsewhere."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
from datapipe.errors import StoreError
from datapipe.index.dataset import open_dataset
from datapipe.index.rows import Member
from datapipe.remote.folder import RemoteFolder, RemoteOptions
from datapipe.store.mixture_store import MixtureStore
from datapipe.store.open import open_store
from datapipe.store.protocol import Store

from ..remote.server import Server, serving

pytest.importorskip("aiohttp")

Sample = tuple[int, list[Member]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, make_folder: Any) -> list[Path]:
    """Four datasets of one to three shards."""
    root = tmp_path_factory.mktemp("store")
    for number, samples in enumerate((7, 3, 1, 5)):
        raw = make_folder(root / "raw" / str(number), samples)
        datapipe.pack_dataset(raw, root / str(number), shard_size=3)
    return [root / str(number) for number in range(4)]


@pytest.fixture
def servers(folders: list[Path]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(folder)) for folder in folders]


def opened(places: Sequence[Path | str], number: int) -> Store:
    place = places[number]
    remote = isinstance(place, str)
    return open_store(open_dataset(RemoteFolder(place, RemoteOptions()) if remote else place))


def edges_of(folders: Sequence[Path]) -> Any:
    shards = [len(open_dataset(folder).manifest.shards) for folder in folders]
    return np.concatenate(([0], np.cumsum(shards))).astype(np.int64)


@pytest.fixture(params=[[], [0, 1, 2, 3], [1, 3]], ids=["here", "there", "mixed"])
def remote(request: Any) -> list[int]:
    """Numbers of the datasets that a server has."""
    return list(request.param)


@pytest.fixture
def store(remote: list[int], folders: list[Path], servers: list[Server]) -> Iterator[MixtureStore]:
    places = [servers[n].url if n in remote else folder for n, folder in enumerate(folders)]
    made = MixtureStore(
        partial(opened, places), edges_of(folders), [n in remote for n in range(len(folders))]
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def samples(folders: list[Path]) -> list[tuple[Sample, list[bytes]]]:
    """Every sample: its shard among all shards, members, and their bytes."""
    found, before = [], 0
    for folder in folders:
        dataset = open_dataset(folder)
        store = open_store(dataset)
        for sample in range(len(dataset)):
            members = dataset.columns.members(sample)
            shard = dataset.columns.shard(sample)
            contents = [bytes(data) for data in store.read(shard, members)]
            found.append(((before + shard, members), contents))
        before += len(dataset.manifest.shards)
        store.close()
    assert len(found) == 16
    return found


def test_samples_and_names_are_those_of_each_dataset(store, samples, folders):
    again = pickle.loads(pickle.dumps(store))  # as another process gets it
    for _ in range(2):
        for (shard, members), contents in samples:
            for each in (store, again):
                data = each.read(shard, members)
                assert [bytes(part) for part in data] == contents
                assert all(map(each.verify, members, data))
        store.close()  # and opened again
    again.close()
    names = [shard.name for folder in folders for shard in open_dataset(folder).manifest.shards]
    assert [store.name(shard) for shard in range(len(names))] == names


def test_reads_that_have_begun_are_those_of_remote_datasets(store, remote, samples, folders):
    numbers = [(7 * at) % len(samples) for at in range(len(samples))]
    wanted = [samples[number] for number in numbers]
    fetch = store.begin([sample for sample, _ in wanted])
    if not remote:
        assert fetch is None
        return
    assert fetch is not None
    bounds, size = edges_of(folders), 0
    for at, ((shard, members), contents) in enumerate(wanted):
        begun = int(np.searchsorted(bounds, shard, side="right")) - 1 in remote
        data = [bytes(part) for part in fetch.contents(at)]
        assert data == (contents if begun else [])
        size += begun * sum(member.size for member in members)
    assert fetch.bytes >= size > 0


def test_a_read_of_no_remote_sample_asks_for_nothing(folders, servers, samples):
    places = [servers[0].url, *folders[1:]]
    store = MixtureStore(partial(opened, places), edges_of(folders), [True, False, False, False])
    fetch = store.begin([sample for sample, _ in samples[7:]])
    assert fetch is None or (fetch.bytes == 0 and fetch.contents(3) == [])
    assert store.begin([]) is None or store.begin([]).bytes == 0  # type: ignore[union-attr]
    assert not servers[0].asked  # the dataset that lies elsewhere is not opened
    store.close()


def test_a_dataset_is_opened_when_its_first_sample_is_read(folders, samples):
    asked: list[int] = []

    def open_part(number: int) -> Store:
        asked.append(number)
        return opened(folders, number)

    store = MixtureStore(open_part, edges_of(folders), [False] * 4)
    store.name(0)
    for (shard, members), _ in samples[-5:]:
        store.read(shard, members)
    assert asked == [0, 3]
    store.close()


def test_a_shard_that_is_gone_is_named(folders, samples, tmp_path, make_folder):
    out = tmp_path / "gone"
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 2), out)
    dataset = open_dataset(out)
    places = [folders[0], out]
    bounds = edges_of(places)
    store = MixtureStore(partial(opened, places), bounds, [False, False])
    store.name(int(bounds[1]))
    next(iter(out.glob("*.tar"))).unlink()
    with pytest.raises(StoreError, match=r"shard-000000\.tar cannot be opened"):
        store.read(int(bounds[1]), dataset.columns.members(0))
