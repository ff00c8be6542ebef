"""Samples for webdataset: the bytes of its reader, the order of the plan, exact resume."""

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
import webdataset as wds
from torch.utils.data import DataLoader, get_worker_info

import datapipe
from datapipe import DecodeError, PlanError, StateMismatch, StoreError
from datapipe.testing import valid_keys

from ..campaigns import rare
from ..remote.server import serving
from .conftest import SAMPLES

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


def keys_of(samples):
    return [sample["__key__"] for sample in samples]


def key_pipeline(source, batch_size=4):
    return wds.DataPipeline(source, wds.to_tuple("__key__"), wds.batched(batch_size))


def loaded(source, workers, batch_size=4):
    """The batches of keys of a WebLoader."""
    pipeline = key_pipeline(source, batch_size)
    loader = wds.WebLoader(pipeline, batch_size=None, num_workers=workers)
    return ([str(key) for key in keys] for (keys,) in source.track(loader))


def as_webdataset_reads(tars):
    urls = wds.SimpleShardList([str(path) for path in tars])
    return list(wds.DataPipeline(urls, wds.tarfile_to_samples()))


def check_samples(source, expected):
    """Assert that samples are those of webdataset, their members in its order."""
    found = list(source)
    assert found == expected
    assert [list(sample) for sample in found] == [list(sample) for sample in expected]


def test_samples_are_those_of_tarfile_to_samples(source, packed):
    expected = as_webdataset_reads(sorted(packed.glob("*.tar")))
    assert len(expected) == SAMPLES
    check_samples(source(shuffle=False), expected)
    assert all(type(sample["json"]) is bytes for sample in source())


def test_samples_of_foreign_tars_have_the_names_in_the_tar(tmp_path, make_tar, jpeg):
    deep = "x" * 60 + "/" + "y" * 90  # over the 100 bytes of a plain header
    members = [
        *(("a.img", jpeg(0)), ("a.json", b'{"n": 1}'), ("a.seg.PNG.bin", b"123")),
        *(("./b.JPG", jpeg(1)), ("./b.cls", b"7")),
        *(("folder/c.img.jpg", jpeg(2)), ("folder/c.txt", b"")),
        *((f"{deep}.input.jpg", jpeg(3)), (f"{deep}.pic", jpeg(4)), (f"{deep}.txt", b"long")),
        *(("k" * 96 + ".jpg", jpeg(7)), ("k" * 96 + ".jpg.cls", b"7")),  # as its first 100 bytes
        *(("größe.10.jpg", jpeg(5)), ("größe.2.jpg", jpeg(6)), ("größe.txt", b"umlaut")),
    ]
    for number, format in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        tar = make_tar(tmp_path / str(number) / "x.tar", members, format)
        expected = as_webdataset_reads([tar])
        assert len(expected) == 6
        assert "img" in expected[0]
        assert expected[1]["__key__"] == "./b"
        check_samples(datapipe.webdataset_source(tar, batch_size=2, shuffle=False), expected)


def test_extensions_that_differ_in_case_alone_are_refused(tmp_path, make_tar, jpeg):
    members = [("a.jpg", jpeg(0)), ("a.cls", b"1"), ("a.CLS", b"2"), ("a.txt", b"a")]
    tar = make_tar(tmp_path / "x.tar", members)
    with pytest.raises(ValueError, match="duplicate file name"):
        as_webdataset_reads([tar])
    with pytest.raises(datapipe.SampleError, match=r"sample a of x\.tar: two .* called 'cls'"):
        list(datapipe.webdataset_source(tar, batch_size=1))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": "shards", "shards_mixed": 2},
        {"seed": 5, "where": "images > 0"},
        {"rank": 4, "world_size": 5},
        {"rank": 0, "world_size": 2, "drop_last": True},
    ],
    ids=str,
)
def test_the_order_is_that_of_the_loader(source, make_raw, options):
    made, loader = source(**options), make_raw(**options)
    for _ in range(2):  # epochs
        assert list(itertools.chain(*loaded(made, 0))) == valid_keys(loader)


def test_stages_of_webdataset_go_on_behind_it(source):
    made = source(where="images > 0", batch_size=8)
    pipeline = wds.DataPipeline(
        made,
        wds.decode("pil"),
        wds.rename(image="jpg;png", record="json"),
        wds.map_dict(image=lambda image: image.size, record=lambda record: record["id"]),
        wds.to_tuple("__key__", "image", "record"),
        wds.batched(8, collation_fn=lambda samples: list(zip(*samples, strict=True))),
    )
    loader = wds.WebLoader(pipeline, batch_size=None, num_workers=2)
    for number, (keys, sizes, records) in enumerate(made.track(loader), 1):
        assert list(records) == [f"id-{int(key)}" for key in keys]
        assert [tuple(size) for size in sizes] == [(160 + int(key), 120) for key in keys]
        assert made.state_dict()["unit"] == (8 * number if len(keys) == 8 else 0)
    assert made.state_dict()["epoch"] == 1


def test_a_damaged_member_and_a_shard_that_is_cut_while_it_is_read_are_named(damaged):
    options = {"batch_size": 4, "shuffle": False}
    made = datapipe.webdataset_source(damaged, **options)
    seen = []
    with pytest.raises(DecodeError, match="not those that were packed") as caught:
        seen.extend(sample["__key__"] for sample in made)
    assert seen == [f"{number:09}" for number in range(6)]
    assert (caught.value.key, caught.value.shard) == ("000000006", "shard-000000.tar")
    assert caught.value.member.startswith("000000006.")
    with pytest.raises(DecodeError, match=r"sample 000000006 .*of shard-000000\.tar"):
        list(loaded(made, 1))  # in a worker
    trusting = datapipe.webdataset_source(damaged, verify=False, **options)
    assert len(keys_of(trusting)) == SAMPLES
    os.truncate(damaged / "shard-000001.tar", 5000)
    with pytest.raises(StoreError, match=r"shard-000001\.tar ends before byte"):
        list(trusting)


def test_arrays_are_refused(packed, tmp_path):
    datapipe.convert_dataset(packed, tmp_path / "arrays", image=None, workers=1)
    with pytest.raises(PlanError, match=r"arrays holds arrays, .* give the shards"):
        datapipe.webdataset_source(tmp_path / "arrays", batch_size=4)


def test_a_remote_dataset_gives_the_same_samples(source, packed):
    pytest.importorskip("aiohttp")
    expected = list(source())
    with serving(packed) as server:
        made = datapipe.webdataset_source(server.url, batch_size=4)
        keys = itertools.chain(*loaded(made, 2))
        assert list(keys) == keys_of(expected)
        made.set_epoch(0)
        for ours, theirs in zip(made, expected, strict=True):
            assert ours == theirs | {"__url__": f"{server.url}/{Path(theirs['__url__']).name}"}


def test_samples_are_read_without_webdataset(packed):
    program = (
        "import sys; sys.modules['webdataset'] = None; import datapipe; "
        "samples = datapipe.webdataset_source(sys.argv[1], batch_size=4); "
        "assert len(list(samples)) == 37"
    )
    subprocess.run([sys.executable, "-c", program, packed], timeout=300, check=True)


class WatchedMemory(torch.Tensor):
    """Integers that note in a file which worker wrote to which of them."""

    def __new__(cls, size, notes):
        made = torch.zeros(size, dtype=torch.int64).as_subclass(cls)
        made.notes = notes
        return made

    def __setitem__(self, index, value):
        with self.notes.open("a") as notes:
            print("worker", get_worker_info().id, "index", index, file=notes)
        super().__setitem__(index, value)


@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (3, "fork"), (1, "spawn")])
def test_workers_of_a_dataloader_keep_the_order_and_share_the_epoch(source, workers, context):
    made, expected = source(), source()
    for each in (made, expected):
        each.set_epoch(3)
    options = {"num_workers": workers, "multiprocessing_context": context}
    loader = DataLoader(made, batch_size=4, collate_fn=keys_of, **options)
    batches = list(made.track(loader))
    assert batches == list(loaded(expected, 0))
    assert [len(keys) for keys in batches] == [4] * 9 + [1]


def test_epochs_follow_each_other_in_persistent_workers(source):
    made, expected = source(), source()
    loader = wds.WebLoader(
        key_pipeline(made), batch_size=None, num_workers=2, persistent_workers=True
    )
    tracked = [[keys for (keys,) in made.track(loader)] for _ in range(2)]
    assert tracked == [list(loaded(expected, 0)) for _ in range(2)]
    next(iter(loader))  # left early
    made.set_epoch(1)
    assert [keys for (keys,) in made.track(loader)] == tracked[1]


def test_only_the_first_worker_writes_to_memory_that_all_share(source, tmp_path):
    """A worker that adds nothing could still write back a count that it read too early."""
    made, notes = source(), tmp_path / "notes"
    made.share(WatchedMemory(6, notes))
    # A fork keeps the class of the memory.
    assert list(DataLoader(made, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    assert notes.read_text() == "worker 0 index 4\n"


@pytest.mark.parametrize("taken", [0, 7, 36, 37])
def test_samples_go_on_behind_the_last_that_was_taken(source, taken):
    whole, begun, resumed = (source(batch_size=1) for _ in range(3))
    expected = keys_of(whole.track(whole)) + keys_of(whole.track(whole))
    seen = keys_of(itertools.islice(begun.track(begun), taken))
    state = json.loads(json.dumps(begun.state_dict()))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    for _ in range(2 if taken < SAMPLES else 1):
        seen += keys_of(resumed.track(resumed))
    assert seen == expected


@pytest.mark.parametrize(("workers", "after"), [(0, 3), (2, 0), rare(2, 3), rare(0, 0)])
@pytest.mark.parametrize("steps", [1, rare(5), rare(9), 10])
def test_batches_resume_exactly_with_other_workers(source, steps, workers, after):
    reference, begun, resumed = source(), source(), source()
    whole = [*loaded(reference, 0), *loaded(reference, 0)]
    batches = loaded(begun, workers)
    seen = list(itertools.islice(batches, steps))
    resumed.load_state_dict(begun.state_dict())
    batches.close()
    assert seen + list(loaded(resumed, after)) == whole[: 20 if steps == 10 else 10]


@pytest.mark.parametrize(("before", "after"), [rare(1, 3), (2, 1), rare(3, 2)])
def test_other_ranks_take_an_epoch_over(source, before, after):
    seen = []
    states = []
    for rank in range(before):
        begun = source(rank=rank, world_size=before, batch_size=2)
        batches = loaded(begun, 2, 2)
        seen += itertools.chain(*itertools.islice(batches, 4))
        states.append(begun.state_dict())
        batches.close()
    assert all(state == states[0] for state in states)
    assert len(seen) == before * 8
    for rank in range(after):
        resumed = source(rank=rank, world_size=after, batch_size=3)
        resumed.load_state_dict(states[0])
        seen += keys_of(resumed)
    assert sorted(seen) == [f"{number:09}" for number in range(SAMPLES)]


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_loader_and_a_source_resume_each_other(source, make_raw, world_size):
    ranks = {"rank": 0, "world_size": world_size}
    made, loader = source(**ranks), make_raw(**ranks)
    ours, theirs = loaded(made, 0), iter(loader)
    assert next(ours) == next(theirs)["key"]
    assert made.state_dict() == loader.state_dict()
    other, other_loader = source(**ranks), make_raw(**ranks)
    other.load_state_dict(loader.state_dict())
    other_loader.load_state_dict(made.state_dict())
    rest = list(itertools.chain(*ours))
    assert keys_of(other) == valid_keys(other_loader) == rest


def test_set_epoch_keeps_the_position_of_a_state(source):
    begun, resumed = source(), source()
    begun.set_epoch(2)
    batches = loaded(begun, 0)
    next(batches)
    resumed.load_state_dict(begun.state_dict())
    resumed.set_epoch(2)
    assert list(loaded(resumed, 0)) == list(batches)
    for made in (begun, resumed):
        made.set_epoch(5)
    whole = list(loaded(begun, 0))
    assert next(loaded(resumed, 0)) == whole[0]  # left early, so it starts over
    assert list(loaded(resumed, 0)) == whole


def test_iterations_that_are_not_tracked_keep_the_epoch(source):
    made = source()
    pipeline = key_pipeline(made)
    for workers in (0, 1):
        loader = wds.WebLoader(pipeline, batch_size=None, num_workers=workers)
        first = [keys for (keys,) in loader]
        assert [keys for (keys,) in loader] == first == list(loaded(source(), 0))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_without_tracking_is_refused(source, workers):
    made = source()
    loader = DataLoader(made, batch_size=4, num_workers=workers, collate_fn=keys_of)
    batches = iter(loader)
    next(batches)
    with pytest.raises(PlanError, match=r"iterate over source\.track\(loader\)"):
        made.state_dict()
    del batches
    next(made.track(loader))
    assert made.state_dict()["unit"] == 4


@pytest.mark.parametrize(("size", "made", "workers"), [(2, "more", 1), (6, "7", 0)])
def test_batches_of_another_size_are_refused(source, size, made, workers):
    with pytest.raises(PlanError, match=f"batch_size=4 makes 10 .* the loader made {made};"):
        list(loaded(source(), workers, size))


def test_batches_of_another_source_and_states_of_other_options_are_refused(source):
    with pytest.raises(PlanError, match="not made of samples of this source"):
        next(source().track(key_pipeline(source())))
    with pytest.raises(StateMismatch, match=r"seed: 1 in the state, 0 here"):
        source().load_state_dict(source(seed=1).state_dict())


def test_tracking_can_be_a_stage(source):
    made, expected = source(), list(itertools.chain(*loaded(source(), 0)))
    loader = wds.WebLoader(key_pipeline(made), batch_size=None, num_workers=2)
    stages = loader.compose(made.track).unbatched()
    assert [key for (key,) in stages] == expected
    assert made.state_dict()["epoch"] == 1


def test_a_mixture_is_drawn_as_the_loader_draws_it(packed, tmp_path):
    copy = shutil.copytree(packed, tmp_path / "copy")

    def both(*weights):
        """A source and a loader."""
        mixture = dict(zip((str(packed), str(copy)), weights, strict=True))
        source = datapipe.webdataset_source(mixture, batch_size=4)
        return source, datapipe.make_loader(mixture, batch_size=4, image=None, num_workers=0)

    made, loader = both(0.7, 0.3)
    tracked = made.track(DataLoader(made, batch_size=4, collate_fn=list))
    batches = iter(loader)
    urls = []
    for _ in range(2):
        urls += [sample["__url__"] for sample in next(tracked)]
        next(batches)
    assert made.state_dict() == loader.state_dict()
    assert {str(Path(url).parent) for url in urls} == {str(packed), str(copy)}
    resumed, other = both(0.2, 0.8)  # changed
    for each in (resumed, other):
        each.load_state_dict(made.state_dict())
    expected = valid_keys(other)
    assert list(itertools.chain(*loaded(resumed, 2))) == expected
    resumed.load_state_dict(made.state_dict())
    assert keys_of(pickle.loads(pickle.dumps(resumed))) == expected


def test_persistent_workers_do_not_go_on_with_another_mixture(packed, tmp_path):
    copy = shutil.copytree(packed, tmp_path / "copy")
    before = datapipe.webdataset_source({str(packed): 0.7, str(copy): 0.3}, batch_size=4)
    next(loaded(before, 0))
    made = datapipe.webdataset_source({str(packed): 0.5, str(copy): 0.5}, batch_size=4)
    options = {"num_workers": 1, "persistent_workers": True, "collate_fn": keys_of}
    loader = DataLoader(made, batch_size=4, **options)
    list(made.track(loader))
    made.load_state_dict(before.state_dict())
    with pytest.raises(PlanError, match="make a new DataLoader"):
        list(made.track(loader))
