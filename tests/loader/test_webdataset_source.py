"""Raw samples for pipelines of webdataset: the bytes of its own reader, in the order of a plan."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import webdataset as wds
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

import datapipe
from datapipe import DecodeError, Loader, PlanError, StateMismatch, StoreError, WebDatasetSource
from datapipe.testing import valid_keys

from ..remote.server import serving
from .conftest import SAMPLES

Sample = dict[str, Any]
MakeSource = Callable[..., WebDatasetSource]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


@pytest.fixture
def source(packed: Path) -> MakeSource:
    """Makes sources on `packed`."""

    def make(**options: Any) -> WebDatasetSource:
        return datapipe.webdataset_source(packed, **{"batch_size": 4, **options})

    return make


@pytest.fixture
def make_raw(packed: Path) -> Callable[..., Loader]:
    """Makes loaders of the same samples, for their order."""

    def make(**options: Any) -> Loader:
        options = {"batch_size": 4, "image": None, "num_workers": 0, **options}
        return datapipe.make_loader(packed, **options)

    return make


def as_webdataset_reads(tars: Iterable[Path]) -> list[Sample]:
    urls = wds.SimpleShardList([str(path) for path in tars])
    return list(wds.DataPipeline(urls, wds.tarfile_to_samples()))


def keys_of(samples: Iterable[Sample]) -> list[str]:
    return [sample["__key__"] for sample in samples]


def key_pipeline(source: WebDatasetSource, batch_size: int = 4) -> wds.DataPipeline:
    return wds.DataPipeline(source, wds.to_tuple("__key__"), wds.batched(batch_size))


def loaded(source: WebDatasetSource, workers: int, batch_size: int = 4, **options: Any) -> Any:
    """The batches of keys of a WebLoader."""
    options = {"batch_size": None, "num_workers": workers, **options}
    loader = wds.WebLoader(key_pipeline(source, batch_size), **options)
    return ([str(key) for key in keys] for (keys,) in source.track(loader))


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(state)))


def test_samples_are_those_of_tarfile_to_samples(source: MakeSource, packed: Path) -> None:
    expected = as_webdataset_reads(sorted(packed.glob("*.tar")))
    assert len(expected) == SAMPLES
    found = list(source(shuffle=False))
    assert found == expected
    assert [list(sample) for sample in found] == [list(sample) for sample in expected]
    assert all(type(sample["json"]) is bytes for sample in found)


def test_samples_of_foreign_tars_have_the_names_in_the_tar(
    tmp_path: Path, make_tar: Any, jpeg: Any
) -> None:
    deep = "x" * 60 + "/" + "y" * 90  # over the 100 bytes of a plain header
    members = [
        *(("a.img", jpeg(0)), ("a.json", b'{"n": 1}'), ("a.seg.PNG.bin", b"123")),
        *(("./b.JPG", jpeg(1)), ("./b.cls", b"7")),
        *(("folder/c.img.jpg", jpeg(2)), ("folder/c.txt", b"")),
        *((f"{deep}.input.jpg", jpeg(3)), (f"{deep}.pic", jpeg(4)), (f"{deep}.txt", b"long")),
        *(("größe.jpg", jpeg(5)), ("größe.txt", b"umlaut")),
    ]
    for number, format in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        tar = make_tar(tmp_path / str(number) / "x.tar", members, format)
        expected = as_webdataset_reads([tar])
        assert len(expected) == 5
        assert "img" in expected[0]
        assert expected[1]["__key__"] == "./b"
        found = list(datapipe.webdataset_source(tar.parent, batch_size=2, shuffle=False))
        assert found == expected
        assert [list(sample) for sample in found] == [list(sample) for sample in expected]


def test_extensions_that_differ_in_case_alone_are_refused(
    tmp_path: Path, make_tar: Any, jpeg: Any
) -> None:
    members = [("a.jpg", jpeg(0)), ("a.cls", b"1"), ("a.CLS", b"2"), ("a.txt", b"a")]
    tar = make_tar(tmp_path / "x.tar", members)
    with pytest.raises(ValueError, match="duplicate file name"):
        as_webdataset_reads([tar])
    with pytest.raises(datapipe.SampleError, match=r"sample a of x\.tar: two .* called 'cls'"):
        list(datapipe.webdataset_source(tar, batch_size=1))


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": "shards", "shards_mixed": 2}, {"seed": 5, "where": "images > 0"}],
    ids=str,
)
def test_the_order_is_that_of_the_loader(
    source: MakeSource, make_raw: Callable[..., Loader], options: dict[str, Any]
) -> None:
    made, loader = source(**options), make_raw(**options)
    for _ in range(3):  # epochs
        assert list(itertools.chain(*loaded(made, 0))) == valid_keys(loader)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_share_an_epoch(
    source: MakeSource, make_raw: Callable[..., Loader], world_size: int, drop_last: bool
) -> None:
    seen = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
        found = keys_of(source(**options))
        assert found == valid_keys(make_raw(**options))
        seen += found
    step = 4 * world_size
    assert len(seen) == len(set(seen)) == (SAMPLES // step * step if drop_last else SAMPLES)


def test_ranks_come_from_the_environment(
    source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    found = source()
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert keys_of(pickle.loads(pickle.dumps(found))) == keys_of(source(rank=1, world_size=3))


def test_a_source_made_before_its_process_group_is_refused(source: MakeSource) -> None:
    found, given = source(), source(rank=1, world_size=3)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        with pytest.raises(PlanError, match=r"made as rank 0 of 1, but .* says 1 of 2"):
            next(iter(found))
        next(iter(given))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_keep_the_order(source: MakeSource, workers: int) -> None:
    expected = list(loaded(source(), 0))
    assert [len(keys) for keys in expected] == [4] * 9 + [1]
    assert list(loaded(source(), workers)) == expected


def test_a_dataloader_batches_samples_in_the_same_order(source: MakeSource) -> None:
    made = source(rank=1, world_size=2)
    loader = DataLoader(made, batch_size=4, num_workers=2, collate_fn=keys_of)
    assert list(made.track(loader)) == list(loaded(source(rank=1, world_size=2), 0))


def test_epochs_follow_each_other_in_persistent_workers(source: MakeSource) -> None:
    made, expected = source(), source()
    loader = wds.WebLoader(
        key_pipeline(made), batch_size=None, num_workers=2, persistent_workers=True
    )
    tracked = [[keys for (keys,) in made.track(loader)] for _ in range(2)]
    assert tracked == [list(loaded(expected, 0)) for _ in range(2)]
    next(iter(loader))  # left early
    made.set_epoch(1)
    assert [keys for (keys,) in made.track(loader)] == tracked[1]


def test_processes_that_are_not_forked_share_the_epoch(source: MakeSource) -> None:
    made, expected = source(batch_size=16), source(batch_size=16)
    made.set_epoch(3)
    expected.set_epoch(3)
    loader = DataLoader(
        made, batch_size=16, num_workers=1, collate_fn=keys_of, multiprocessing_context="spawn"
    )
    assert [key for keys in made.track(loader) for key in keys] == keys_of(expected)


@pytest.mark.parametrize("taken", [0, 1, 4, 7, 36, 37])
def test_samples_go_on_behind_the_last_that_was_taken(source: MakeSource, taken: int) -> None:
    def samples(source: WebDatasetSource) -> list[str]:
        return keys_of(source.track(source))

    whole = source(batch_size=1)
    expected = samples(whole) + samples(whole)
    begun, resumed = source(batch_size=1), source(batch_size=1)
    iterator = begun.track(begun)
    seen = keys_of(itertools.islice(iterator, taken))
    state = through_json(begun.state_dict())
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    seen += samples(resumed)
    assert seen + (samples(resumed) if taken < SAMPLES else []) == expected


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 5, 9, 10])
def test_batches_resume_exactly_with_other_workers(
    source: MakeSource, steps: int, workers: int, after: int
) -> None:
    reference = source()
    whole = [*loaded(reference, 0), *loaded(reference, 0)]
    begun, resumed = source(), source()
    batches = loaded(begun, workers)
    seen = list(itertools.islice(batches, steps))
    resumed.load_state_dict(through_json(begun.state_dict()))
    batches.close()
    rest = list(loaded(resumed, after))
    assert seen + rest == whole[: 20 if steps == 10 else 10]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1), (3, 2)])
def test_other_ranks_take_an_epoch_over(source: MakeSource, before: int, after: int) -> None:
    seen: list[str] = []
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
def test_a_loader_and_a_source_resume_each_other(
    source: MakeSource, make_raw: Callable[..., Loader], world_size: int
) -> None:
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


KILLED = """
import os, signal, sys, webdataset as wds, datapipe, json
source = datapipe.webdataset_source(sys.argv[1], batch_size=4)
pipeline = wds.DataPipeline(source, wds.to_tuple("__key__"), wds.batched(4))
loader = wds.WebLoader(pipeline, batch_size=None, num_workers=2)
for step, (keys,) in enumerate(source.track(loader), 1):
    if step == 3:
        print(json.dumps(source.state_dict()), flush=True)
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.campaign
def test_a_killed_program_resumes_behind_its_last_state(source: MakeSource, packed: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, packed], stdout=subprocess.PIPE, timeout=120, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    resumed = source()
    resumed.load_state_dict(json.loads(ran.stdout))
    assert list(loaded(resumed, 2)) == list(loaded(source(), 0))[3:]


def test_an_iteration_that_was_left_early_starts_over(source: MakeSource) -> None:
    made = source()
    first = next(loaded(made, 0))
    whole = list(loaded(made, 0))
    assert whole[0] == first
    assert next(loaded(made, 0)) != first  # the next epoch


def test_set_epoch_keeps_the_position_of_a_state(source: MakeSource) -> None:
    begun, resumed = source(), source()
    begun.set_epoch(2)
    batches = loaded(begun, 0)
    next(batches)
    resumed.load_state_dict(begun.state_dict())
    resumed.set_epoch(2)
    assert list(loaded(resumed, 0)) == list(batches)
    for made in (begun, resumed):
        made.set_epoch(5)
    assert list(loaded(resumed, 0)) == list(loaded(begun, 0))


def test_iterations_that_are_not_tracked_keep_the_epoch(source: MakeSource) -> None:
    made = source()
    pipeline = key_pipeline(made)
    for workers in (0, 1):
        loader = wds.WebLoader(pipeline, batch_size=None, num_workers=workers)
        first = [keys for (keys,) in loader]
        assert [keys for (keys,) in loader] == first == list(loaded(source(), 0))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_without_tracking_is_refused(source: MakeSource, workers: int) -> None:
    made = source()
    loader = DataLoader(made, batch_size=4, num_workers=workers, collate_fn=keys_of)
    batches = iter(loader)
    next(batches)
    with pytest.raises(PlanError, match=r"iterate over source\.track\(loader\)"):
        made.state_dict()
    del batches
    next(made.track(loader))
    assert made.state_dict()["unit"] == 4


def test_batches_of_another_source_are_refused(source: MakeSource) -> None:
    with pytest.raises(PlanError, match="not made of samples of this source"):
        next(source().track(key_pipeline(source())))


def test_tracking_can_be_a_stage(source: MakeSource) -> None:
    made, expected = source(), list(itertools.chain(*loaded(source(), 0)))
    loader = wds.WebLoader(key_pipeline(made), batch_size=None, num_workers=2)
    stages = loader.compose(made.track).unbatched()
    assert [key for (key,) in stages] == expected
    assert made.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("size", "made"), [(2, "more"), (6, "7")])
def test_batches_of_another_size_are_refused(
    source: MakeSource, size: int, made: str, workers: int
) -> None:
    with pytest.raises(PlanError, match=f"batch_size=4 makes 10 .* the loader made {made};"):
        list(loaded(source(), workers, size))


def test_a_state_of_other_options_is_refused(source: MakeSource) -> None:
    with pytest.raises(StateMismatch, match=r"seed: 1 in the state, 0 here"):
        source().load_state_dict(source(seed=1).state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_stages_of_webdataset_go_on_behind_it(source: MakeSource, workers: int) -> None:
    made = source(where="images > 0", batch_size=8)
    pipeline = wds.DataPipeline(
        made,
        wds.decode("pil"),
        wds.rename(image="jpg;png", record="json"),
        wds.map_dict(image=lambda image: image.size, record=lambda record: record["id"]),
        wds.to_tuple("__key__", "image", "record"),
        wds.batched(8, collation_fn=lambda samples: list(zip(*samples, strict=True))),
    )
    loader = wds.WebLoader(pipeline, batch_size=None, num_workers=workers)
    for number, (keys, sizes, records) in enumerate(made.track(loader), 1):
        assert list(records) == [f"id-{int(key)}" for key in keys]
        assert [tuple(size) for size in sizes] == [(160 + int(key), 120) for key in keys]
        assert made.state_dict()["unit"] == (8 * number if len(keys) == 8 else 0)
    assert made.state_dict()["epoch"] == 1


def test_a_damaged_member_is_named(damaged: Path) -> None:
    made = datapipe.webdataset_source(damaged, batch_size=4, shuffle=False)
    seen: list[str] = []
    with pytest.raises(DecodeError, match="not those that were packed") as caught:
        seen.extend(sample["__key__"] for sample in made)
    assert seen == [f"{number:09}" for number in range(6)]
    assert (caught.value.key, caught.value.shard) == ("000000006", "shard-000000.tar")
    assert caught.value.member.startswith("000000006.")
    trusting = datapipe.webdataset_source(damaged, batch_size=4, shuffle=False, verify=False)
    assert len(keys_of(trusting)) == SAMPLES


def test_workers_name_a_damaged_member(damaged: Path) -> None:
    made = datapipe.webdataset_source(damaged, batch_size=4, shuffle=False)
    with pytest.raises(Exception, match=r"sample 000000006 .*of shard-000000\.tar"):
        list(loaded(made, 1))


def test_a_shard_that_is_cut_while_it_is_read_is_named(packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(packed, tmp_path / "copy")
    made = datapipe.webdataset_source(copy, batch_size=4, shuffle=False)
    os.truncate(copy / "shard-000001.tar", 5000)
    with pytest.raises(StoreError, match=r"shard-000001\.tar ends before byte"):
        list(made)


def test_arrays_are_refused(packed: Path, tmp_path: Path) -> None:
    datapipe.convert_dataset(packed, tmp_path / "arrays", image=None, workers=1)
    with pytest.raises(PlanError, match=r"arrays holds arrays, .* give the shards"):
        datapipe.webdataset_source(tmp_path / "arrays", batch_size=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_remote_dataset_gives_the_same_samples(packed: Path, workers: int) -> None:
    pytest.importorskip("aiohttp")
    expected = {
        sample["__key__"]: sample for sample in datapipe.webdataset_source(packed, batch_size=4)
    }
    with serving(packed) as server:
        made = datapipe.webdataset_source(server.url, batch_size=4)
        if workers:
            assert [key for keys in loaded(made, workers) for key in keys] == list(expected)
            return
        for sample in made:
            name = Path(expected[sample["__key__"]]["__url__"]).name
            assert sample == expected[sample["__key__"]] | {"__url__": f"{server.url}/{name}"}


def test_a_mixture_is_drawn_as_the_loader_draws_it(packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(packed, tmp_path / "copy")
    mixture = {str(packed): 0.7, str(copy): 0.3}
    made = datapipe.webdataset_source(mixture, batch_size=4)
    loader = datapipe.make_loader(mixture, batch_size=4, image=None, num_workers=0)
    tracked = made.track(DataLoader(made, batch_size=4, collate_fn=list))
    urls = [sample["__url__"] for _ in range(2) for sample in next(tracked)]
    batches = iter(loader)
    next(batches)
    next(batches)
    assert made.state_dict() == loader.state_dict()
    assert {str(Path(url).parent) for url in urls} == {str(packed), str(copy)}
    changed = {str(packed): 0.2, str(copy): 0.8}
    resumed = datapipe.webdataset_source(changed, batch_size=4)
    resumed.load_state_dict(made.state_dict())
    other = datapipe.make_loader(changed, batch_size=4, image=None, num_workers=0)
    other.load_state_dict(loader.state_dict())
    expected = valid_keys(other)
    assert [key for keys in loaded(resumed, 2) for key in keys] == expected
    resumed.load_state_dict(made.state_dict())
    again = pickle.loads(pickle.dumps(resumed))
    assert keys_of(again) == expected


def test_persistent_workers_do_not_go_on_with_another_mixture(packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(packed, tmp_path / "copy")
    before = datapipe.webdataset_source({str(packed): 0.7, str(copy): 0.3}, batch_size=4)
    next(loaded(before, 0))
    made = datapipe.webdataset_source({str(packed): 0.5, str(copy): 0.5}, batch_size=4)
    options = {"num_workers": 1, "persistent_workers": True, "collate_fn": keys_of}
    loader = DataLoader(made, batch_size=4, **options)
    list(made.track(loader))
    made.load_state_dict(before.state_dict())
    with pytest.raises(Exception, match="make a new DataLoader"):
        list(made.track(loader))


def test_samples_are_read_without_webdataset(packed: Path) -> None:
    program = (
        "import sys; sys.modules['webdataset'] = None; import datapipe; "
        "samples = datapipe.webdataset_source(sys.argv[1], batch_size=4); "
        "assert len(list(samples)) == 37"
    )
    subprocess.run([sys.executable, "-c", program, packed], timeout=120, check=True)


def test_torch_is_told_that_it_is_iterable(source: MakeSource) -> None:
    assert isinstance(source(), torch.utils.data.IterableDataset)
