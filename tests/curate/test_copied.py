"""Selected, split and merged datasets lose nothing and double nothing."""

import shutil
import tarfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import datapipe
from datapipe import CopySpec, IndexMismatch, PackError
from datapipe.testing import assert_same_batches
from tests.case_files import cases
from tests.flipping import flip

from ..remote.server import serving
from .conftest import SAMPLES, data_at_offsets, rows

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def write_tars(folder, drawn, make_tar, jpeg):
    """Write tars as others do, with members between samples; return the samples."""
    samples = {}
    for number, (format, images, texts) in enumerate(drawn):
        written = [("README", b"no sample")]
        for sample, length in enumerate(texts):
            key = f"{number}_{sample}"
            names = ["jpg", *(f"{n}.jpg" for n in range(1, images))][:images]
            held = {name: jpeg(sample + n) for n, name in enumerate(names)}
            samples[key] = held | {"txt": b"t" * length}
            written += [(f"{key}.{ext}", data) for ext, data in samples[key].items()]
            if sample % 2:
                written.append((f"folder/{'long' * 30}/no-sample", b"n" * 700))
        make_tar(folder / f"{number}.tar", written, FORMATS[format])
    return samples


tars = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 2), st.lists(st.integers(1, 1500), min_size=1, max_size=5)
    ),
    min_size=1,
    max_size=3,
)
sizes = st.sampled_from(["1", "3", "2KB", "6KB", "1MB"])


@settings(max_examples=6)
@given(drawn=tars, size=sizes, seed=st.integers(0, 99), share=st.floats(0.2, 0.8))
def test_nothing_is_lost_or_doubled(drawn, size, seed, share, make_tar, jpeg, members):
    with TemporaryDirectory() as name:
        home, output = Path(name), CopySpec(shard_size=size)
        samples = write_tars(home / "tars", drawn, make_tar, jpeg)
        datapipe.index_shards(home / "tars")
        number = 1 + round(share * (len(samples) - 1))
        datapipe.select_samples(home / "tars", home / "one", number=number, seed=seed)
        kept = members(home / "one")
        assert len(kept) == number
        assert kept == {key: samples[key] for key in samples if key in kept}
        # Keys from a list bring the others: the two are the whole.
        others = [key for key in samples if key not in kept]
        if others:
            datapipe.select_samples(home / "tars", home / "two", keys=others, output=output)
            assert members(home / "two") == {key: samples[key] for key in others}
            report = datapipe.merge_datasets(
                [home / "one", home / "two"], home / "all", output=output
            )
            assert report.samples == len(samples)
            assert members(home / "all") == samples
            merged = rows(home / "one", "offset") + rows(home / "two", "offset")
            assert rows(home / "all", "offset") == merged
            of_tars = {row["key"]: row for row in rows(home / "tars", "offset")}
            assert merged == [of_tars[row["key"]] for row in merged]
        copied = home / ("all" if others else "one")
        assert data_at_offsets(copied) == [
            list(samples[row["key"]].values()) for row in rows(copied)
        ]


@settings(max_examples=6)
@given(
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    salt=st.sampled_from(["", "a", "\u00e9"]),
)
def test_parts_are_the_whole(shares, salt, shards, members):
    total = sum(shares)
    parts = {f"part{number}": share / total for number, share in enumerate(shares)}
    with TemporaryDirectory() as name:
        try:
            reports = datapipe.split_dataset(shards, Path(name), parts=parts, salt=salt)
        except PackError as error:
            assert "would get none of 20 samples; give it a larger share" in str(error)  # noqa: PT017
            assert not list(Path(name).rglob("*"))
            return
        found = [members(Path(name) / part) for part in parts]
        assert [report.samples for report in reports.values()] == [len(part) for part in found]
        assert sum(map(len, found)) == SAMPLES
        whole = {}
        for part in found:
            whole |= part
        assert whole == members(shards)


@pytest.mark.parametrize("size", ["4", "10KB"])
def test_a_copy_of_everything_is_what_packing_would_write(raw, shards, tmp_path, size):
    datapipe.pack_dataset(raw, tmp_path / "packed", shard_size=size, workers=1)
    output = CopySpec(shard_size=size)
    datapipe.select_samples(shards, tmp_path / "copied", number=SAMPLES, output=output)
    written = sorted((tmp_path / "packed").glob("shard-*"))
    assert len(written) >= 2
    for path in written:
        assert (tmp_path / "copied" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("view", [False, True])
def test_a_loader_gives_the_samples_that_a_filter_gives(shards, tmp_path, view):
    where = "width >= 42 and height < 33"
    output = CopySpec(shard_size="4", view=view)
    report = datapipe.select_samples(shards, tmp_path / "some", where=where, output=output)
    assert 3 < report.samples < SAMPLES
    assert bool(list((tmp_path / "some").glob("*.tar"))) != view
    options = {"batch_size": 2, "shuffle": False, "meta": ("key", "source", "text")}
    assert_same_batches(
        datapipe.make_loader(shards, where=where, **options),
        datapipe.make_loader(tmp_path / "some", **options),
    )


def test_views_of_views_are_copied_as_what_they_show(shards, tmp_path, members):
    view = CopySpec(view=True)
    datapipe.select_samples(shards, tmp_path / "a" / "view", number=9, output=view)
    datapipe.merge_datasets(
        [tmp_path / "a" / "view", shards], tmp_path / "both", prefixes=["a-", ""], output=view
    )
    datapipe.select_samples(tmp_path / "both", tmp_path / "copy", number=SAMPLES + 9)
    found, whole = members(tmp_path / "copy"), members(shards)
    of_view = {key.removeprefix("a-"): found.pop(key) for key in list(found)[:9]}
    assert of_view == {key: whole[key] for key in of_view}
    assert found == whole

    with pytest.raises(PackError, match=f"is a view .*: datapipe select {tmp_path}/both NEW"):
        datapipe.pack_dataset(tmp_path / "both", tmp_path / "packed")
    (tmp_path / "both" / "dataset.json").unlink()
    with pytest.raises(IndexMismatch, match=r"without its dataset\.json: a copy is under way"):
        datapipe.verify_dataset(tmp_path / "both")


def test_a_sample_stays_in_its_part_when_the_data_grow(raw, tmp_path, make_folder, members):
    grown, more = tmp_path / "grown", make_folder(tmp_path / "more", 30)
    datapipe.pack_dataset(raw, grown, workers=1)
    datapipe.split_dataset(grown, tmp_path / "before", val=0.3)
    datapipe.pack_dataset(more, grown, append=True, workers=1)
    datapipe.split_dataset(grown, tmp_path / "after", val=0.3)
    datapipe.split_dataset(grown, tmp_path / "larger", val=0.6)
    for part in ("val", "train"):
        before = members(tmp_path / "before" / part)
        assert before.items() <= members(tmp_path / "after" / part).items()
    assert members(tmp_path / "after/val").items() < members(tmp_path / "larger/val").items()


def test_keys_that_clash_are_refused_with_the_remedies(shards, tmp_path, members):
    with pytest.raises(PackError, match=r"20 keys belong to more.*'000000000'.*--prefix.*--renumb"):
        datapipe.merge_datasets([shards, shards], tmp_path / "out")
    datapipe.merge_datasets([shards, shards], tmp_path / "named", prefixes=["a-", "b-"])
    whole = members(shards)
    assert members(tmp_path / "named") == {
        f"{prefix}-{key}": held for prefix in "ab" for key, held in whole.items()
    }
    output = CopySpec(renumber=True)
    datapipe.merge_datasets([shards, shards], tmp_path / "numbered", output=output)
    assert list(members(tmp_path / "numbered")) == [f"{number:09}" for number in range(40)]
    sources = [row["source"] for row in rows(tmp_path / "numbered")]
    assert sources == 2 * [row["source"] for row in rows(shards)]


@pytest.mark.parametrize(
    "command",
    [
        partial(datapipe.select_samples, number=2),
        partial(datapipe.repair_dataset, unchecked=True),
    ],
)
def test_tars_that_repeat_a_key_are_given_new_ones(command, tmp_path, make_tar, jpeg, members):
    for number in range(2):
        make_tar(tmp_path / "tars" / f"{number}.tar", [("1.jpg", jpeg(number))])
    with pytest.raises(PackError, match=r"^1 key belongs to .*, such as '1'; give --renumber"):
        command(tmp_path / "tars", tmp_path / "out")
    command(tmp_path / "tars", tmp_path / "out", output=CopySpec(renumber=True))
    assert list(members(tmp_path / "out")) == ["000000000", "000000001"]


def test_keys_that_no_member_of_ours_can_have_are_refused(tmp_path, make_tar, jpeg, members):
    make_tar(tmp_path / "tars" / "0.tar", [("a/1.jpg", jpeg(1)), ("a/2.jpg", jpeg(2))])
    make_tar(tmp_path / "tars" / "1.tar", [("3.jpg", jpeg(3))])
    with pytest.raises(PackError, match=r"member name 'a/1\.jpg'.*--renumber, which makes new"):
        datapipe.select_samples(tmp_path / "tars", tmp_path / "out", number=3)
    datapipe.select_samples(tmp_path / "tars", tmp_path / "some", keys=["3"])
    output = CopySpec(renumber=True)
    datapipe.select_samples(tmp_path / "tars", tmp_path / "out", number=3, output=output)
    numbered = {f"{number - 1:09}": {"jpg": jpeg(number)} for number in (1, 2, 3)}
    assert members(tmp_path / "out") == numbered


def test_samples_are_copied_from_urls(shards, tmp_path, contents):
    options = {"number": 7, "output": CopySpec(shard_size="3")}
    with serving(shards) as server:
        datapipe.select_samples(server.url, tmp_path / "from_url", **options)
        with pytest.raises(PackError, match="a view only works on folders"):
            datapipe.select_samples(server.url, tmp_path / "v", output=CopySpec(view=True))
    datapipe.select_samples(shards, tmp_path / "from_folder", **options)
    assert contents(tmp_path / "from_url") == contents(tmp_path / "from_folder")


def test_damaged_bytes_are_not_copied(shards, tmp_path):
    damaged = shutil.copytree(shards, tmp_path / "damaged")
    flip(damaged / "shard-000001.tar", 600)
    with pytest.raises(datapipe.StoreError, match=r"shard-000001\.tar, sample 000000006, member"):
        datapipe.select_samples(damaged, tmp_path / "out", number=SAMPLES)
    assert not (tmp_path / "out" / "dataset.json").exists()
    datapipe.select_samples(damaged, tmp_path / "some", where="shard != 1")


def test_tars_without_a_sample_are_refused_under_a_filter_too(tmp_path, make_tar):
    make_tar(tmp_path / "tars" / "0.tar", [("._0.txt", b"")])
    for options in ({}, {"where": "width > 3"}):
        with pytest.raises(PackError, match="no samples are left to copy"):
            datapipe.select_samples(tmp_path / "tars", tmp_path / "out", **options)


def test_what_cannot_be_copied_is_refused_before_anything_is_written(
    shards, raw, tmp_path, contents, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shards, "shards")
    datapipe.convert_dataset(shards, "arrays", image=datapipe.ImageSpec(size=8))
    datapipe.select_samples("shards", "copied", number=3)
    files = {"file": "a", "keys": "000000001\nno such\n", "nothing_in_it": "\n", "taken/a.tex": ""}
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    before = contents(tmp_path)
    for options, message in cases("curate/refused"):
        call = datapipe.select_samples
        arguments = {"dataset": "shards", "out": "out", **yaml.safe_load(f"{{{options}}}")}
        if "prefixes" in arguments:
            call, arguments["datasets"] = datapipe.merge_datasets, [arguments.pop("dataset")] * 2
        elif {"val", "parts"} & arguments.keys():
            call = datapipe.split_dataset
        with pytest.raises((PackError, datapipe.IndexMismatch), match=message):
            call(**arguments)
    with pytest.raises(PackError, match="`datapipe merge` both"):
        datapipe.pack_dataset(raw, "copied", append=True)
    assert contents(tmp_path) == before
