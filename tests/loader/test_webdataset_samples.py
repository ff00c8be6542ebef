"""Raw samples for webdataset: the bytes of its own reader, in the order of the plan, by rank."""

import itertools
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import webdataset as wds

import datapipe
from datapipe import DecodeError, PlanError, StoreError
from datapipe.testing import valid_keys
from tests.fake_ranks import fake_rank

from ..remote.server import serving
from .conftest import SAMPLES
from .raw_pipelines import as_webdataset_reads, keys_of, loaded

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


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
        *(("größe.jpg", jpeg(5)), ("größe.txt", b"umlaut")),
    ]
    for number, format in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        tar = make_tar(tmp_path / str(number) / "x.tar", members, format)
        expected = as_webdataset_reads([tar])
        assert len(expected) == 5
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
    [{}, {"shuffle": "shards", "shards_mixed": 2}, {"seed": 5, "where": "images > 0"}],
    ids=str,
)
def test_the_order_is_that_of_the_loader(source, make_raw, options):
    made, loader = source(**options), make_raw(**options)
    for _ in range(2):  # epochs
        assert list(itertools.chain(*loaded(made, 0))) == valid_keys(loader)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [2, 5])
def test_ranks_share_an_epoch(source, make_raw, world_size, drop_last):
    seen = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
        found = keys_of(source(**options))
        assert found == valid_keys(make_raw(**options))
        seen += found
    step = 4 * world_size
    assert len(seen) == len(set(seen)) == (SAMPLES // step * step if drop_last else SAMPLES)


def test_a_source_made_before_its_process_group_is_refused(source):
    found, given = source(), source(rank=1, world_size=3)
    with fake_rank(1, 2):
        with pytest.raises(PlanError, match=r"made as rank 0 of 1, but .* says 1 of 2"):
            next(iter(found))
        next(iter(given))


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
