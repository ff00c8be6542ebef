"""Columns of several datasets as one are those datasets' columns, one behind the other."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import datapipe
from datapipe.errors import IndexMismatch
from datapipe.index.columns import DTYPES
from datapipe.index.dataset import open_dataset
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.files.random_read import gather, gather_counts
from datapipe.index.mixture import ColumnCounts, MixtureColumn, MixtureColumns

from .dataset_parts import Opener, mixture_of
from .where_columns import columns_of


def edges_of(parts):
    return np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)


def as_parts(arrays):
    return [lambda array=array: array for array in arrays]


sizes = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@st.composite
def plain_parts(draw):
    lengths = draw(sizes)
    values = iter(range(100, 1000))
    return [np.array([next(values) for _ in range(length)], np.int64) for length in lengths]


@given(parts=plain_parts(), beyond=st.integers(0, 7), data=st.data())
def test_values_are_those_of_the_concatenation_and_there_are_no_others(parts, beyond, data):
    whole, array = np.concatenate(parts), MixtureColumn(as_parts(parts), edges_of(parts))
    assert len(array) == len(whole)
    assert array[:].tolist() == whole.tolist()
    inside = list(range(len(whole)))[:2]
    for outside in (len(whole) + beyond, -len(whole) - 1 - beyond):
        with pytest.raises(IndexError):
            array[outside]
        with pytest.raises(IndexError):
            array[np.array([*inside, outside])]
    with pytest.raises(IndexError):
        gather(array, np.array([*inside, -1]))
    with pytest.raises(IndexError):
        array[np.zeros(len(whole) + 1, bool)]
    bound = st.one_of(st.none(), st.integers(-9, 40))
    step = st.one_of(st.none(), st.integers(-3, 3).filter(bool))
    cut = slice(data.draw(bound), data.draw(bound), data.draw(step))
    assert array[cut].tolist() == whole[cut].tolist()
    if not len(whole):
        return
    index = st.integers(-len(whole), len(whole) - 1)
    one = data.draw(index)
    assert array[one] == whole[one]
    assert type(array[one]) is type(whole[one])
    several = np.array(data.draw(st.lists(index, max_size=12)), np.int64)
    assert array[several].tolist() == whole[several].tolist()
    assert gather(array, several % len(whole)).tolist() == whole[several % len(whole)].tolist()
    table = np.resize(several, (2, 3)) if len(several) else np.zeros((2, 3), np.int64)
    assert array[table].tolist() == whole[table].tolist()
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole))))
    assert array[mask].tolist() == whole[mask].tolist()


@given(lengths=sizes, data=st.data())
def test_offsets_lead_into_the_concatenation(lengths, data):
    counts = [
        np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), np.int64)
        for n in lengths
    ]
    parts = [np.concatenate(([0], np.cumsum(part))).astype(np.int64) for part in counts]
    shifts = np.concatenate(([0], np.cumsum([part[-1] for part in parts])))
    bounds = edges_of(counts)
    array = MixtureColumn(as_parts(parts), bounds, shifts=shifts[:-1])
    flat = np.concatenate(counts)
    expected = np.concatenate(([0], np.cumsum(flat)))
    if not len(flat):  # there is no part to ask
        return
    assert len(array) == len(expected)
    assert array[:].tolist() == expected.tolist()
    assert array[-1] == expected[-1]
    assert [int(array[at]) for at in range(len(expected))] == expected.tolist()
    some = np.array(data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=9)), np.int64)
    assert gather_counts(array, some).tolist() == flat[some].tolist()
    assert array[some + 1].tolist() == expected[some + 1].tolist()
    with pytest.raises(IndexError):
        gather_counts(array, np.array([len(flat)]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, make_folder, encode):
    """Datasets of several shards, with other members each; some keys are those of another."""
    root = tmp_path_factory.mktemp("joined")
    pngs = root / "raw" / "1"
    pngs.mkdir(parents=True)
    for number in range(5):
        (pngs / f"{number}.png").write_bytes(encode(kind="PNG"))
        (pngs / f"{number}.txt").write_text(f"drawing {number}")
    texts = root / "raw" / "3"
    texts.mkdir()
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I."}]
    (texts / "data.json").write_text(json.dumps([{"id": n, "conversations": turns} for n in "ab"]))
    make_folder(root / "raw" / "0", 7)
    make_folder(root / "raw" / "2", 1)
    out = []
    for number in range(4):
        out.append(root / str(number))
        datapipe.pack_dataset(root / "raw" / str(number), out[-1], shard_size=3)
    return out


@pytest.fixture(params=["plain", "empty at the ends", "empty in the middle"])
def parts(request, folders):
    found = [open_dataset(folder).columns for folder in folders]
    empty = columns_of([])  # as where all shards were emptied
    if request.param == "empty at the ends":
        return [empty, *found, empty, empty]
    if request.param == "empty in the middle":
        return [found[0], empty, empty, *found[1:]]
    return found


@pytest.fixture
def columns(parts):
    return MixtureColumns.of(as_parts(parts), [ColumnCounts.of(part) for part in parts])


def test_columns_are_those_of_each_dataset(parts, columns):
    offsets = {"sample_member": "member_size", "sample_image": "image_width"}
    for name in DTYPES:
        if name.endswith(("_key", "_source")) or name.startswith(("key_", "source_")):
            continue
        whole = getattr(columns, name)
        if name in offsets:
            counts = [np.diff(getattr(part, name)) for part in parts]
            assert np.diff(whole[:]).tolist() == np.concatenate(counts).tolist()
            assert whole[-1] == len(getattr(columns, offsets[name]))
        elif name == "member_ext":
            names = [part.extensions[code] for part in parts for code in part.member_ext]
            assert [columns.extensions[code] for code in whole[:].tolist()] == names
        else:
            values = np.concatenate([getattr(part, name) for part in parts])
            assert whole[:].tolist() == values.tolist()
            assert whole.dtype == whole[:].dtype == values.dtype


def test_samples_have_their_keys_members_and_shards(parts, columns):
    keys, sources, members, shards, before = [], [], [], [], 0
    for part in parts:
        numbers = np.arange(len(part.text_bytes))
        keys += part.keys(numbers) if len(numbers) else []
        sources += part.sources(numbers) if len(numbers) else []
        members += [part.members(sample) for sample in numbers.tolist()]
        shards += (before + part.shards(numbers)).tolist()
        before += len(part.shard_sample) - 1
    samples = np.arange(len(keys))
    assert len(keys) == 15
    assert columns.keys(samples) == keys
    assert columns.sources(samples) == sources
    assert [columns.members(sample) for sample in samples.tolist()] == members
    assert columns.shards(samples).tolist() == shards
    assert [columns.shard(sample) for sample in samples.tolist()] == shards
    back = samples[::-1]
    assert columns.keys(back) == keys[::-1]
    assert columns.shards(back).tolist() == shards[::-1]
    assert columns.strings("key", 3, 11).to_pylist() == keys[3:11]
    assert columns.strings("source", 3, 11).to_pylist() == sources[3:11]
    assert columns.key(9) == keys[9]


def test_a_dataset_of_a_mixture_is_opened_once_and_when_needed(folders):
    dataset = mixture_of(folders)
    Opener.opened = 0
    assert len(dataset) == 15
    assert dataset.sample_edges.tolist() == [0, 7, 12, 13, 15]
    assert dataset.kinds(np.array([14, 0, 7, 12, 6])).tolist() == [3, 0, 1, 2, 0]
    assert dataset.dataset_names(np.array([14, 0])) == ["the 3", "the 0"]
    assert dataset.fingerprint
    assert Opener.opened == 0
    dataset.columns.keys(np.array([8, 9, 11]))
    dataset.columns.members(10)
    assert Opener.opened == 1


def test_keys_of_large_columns_are_compared_before_they_are_read(folders, tmp_path):
    own = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in folders]
    plain = [open_dataset(folder).columns for folder in own]
    expected = [key for part in plain for key in part.keys(np.arange(len(part.text_bytes)))][::-1]
    with as_one_of(1 << 40):
        parts = [open_dataset(folder).columns for folder in own]
    columns = MixtureColumns.of(as_parts(parts), [ColumnCounts.of(part) for part in plain])
    samples = np.arange(15)[::-1]
    with (own[2] / "columns" / "key_bytes.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    with pytest.raises(IndexMismatch, match=r"key_bytes\.npy is damaged"):
        columns.keys(samples)
    whole = [number for number, key in enumerate(expected) if number != 2]
    assert columns.keys(samples[whole]) == [expected[number] for number in whole]


def test_the_fingerprint_is_of_names_and_contents(folders):
    first = mixture_of(folders).fingerprint
    assert first == mixture_of(folders).fingerprint
    assert first != mixture_of(folders[::-1]).fingerprint
    assert first != mixture_of(folders[:-1]).fingerprint
