"""A selection answers as the list of the selected samples would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.plan.selection import Selection, build_directory


@st.composite
def chosen_samples(draw):
    """Whether each of up to some blocks of samples is selected: none, few, most, all, in runs."""
    size = draw(st.one_of(st.integers(0, 70), st.sampled_from([511, 512, 513, 1024, 2000, 4096])))
    share = draw(st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    chosen = generator.random(size) < share
    if draw(st.booleans()):
        first, last = sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))
        chosen[first:last] = draw(st.booleans())
    return chosen


def pack(chosen):
    return np.packbits(chosen, bitorder="little")


@given(chosen=chosen_samples())
def test_a_selection_answers_as_the_list_of_its_samples(chosen):
    selection, expected = Selection(pack(chosen), len(chosen)), np.flatnonzero(chosen)
    assert (selection.count, selection.size) == (len(expected), len(chosen))
    assert selection.select(np.arange(len(expected))).tolist() == expected.tolist()
    before = np.concatenate(([0], np.cumsum(chosen)))
    assert selection.rank(np.arange(len(chosen) + 1)).tolist() == before.tolist()
    edges = np.arange(-(-len(chosen) // 512) + 1) * 512
    held = [np.count_nonzero(chosen[:edge]) for edge in edges]
    assert build_directory(pack(chosen)).tolist() == held


def test_numpy_before_2_counts_bits_by_a_table(monkeypatch):
    chosen = np.random.default_rng(0).random(9000) < 0.3
    selection = Selection(pack(chosen), 9000)
    every = np.arange(selection.count)
    expected = selection.select(every).tolist()
    if hasattr(np, "bitwise_count"):
        monkeypatch.delattr(np, "bitwise_count")
    assert Selection(pack(chosen), 9000).select(every).tolist() == expected


def test_positions_are_answered_in_the_shape_and_order_in_which_they_are_asked():
    selection = Selection(pack(np.arange(3000) % 3 == 0), 3000)
    assert selection.select([[7, 1], [999, 7]]).tolist() == [[21, 3], [2997, 21]]
    assert int(selection.select(4)) == 12
    assert selection.rank([[21, 22]]).tolist() == [[7, 8]]
    assert selection.select([]).tolist() == selection.rank([]).tolist() == []
    assert selection.select([1]).dtype == selection.rank([1]).dtype == np.int64


def test_a_selection_mapped_from_disk_is_asked_more_than_is_answered_in_one_piece(tmp_path):
    chosen = np.random.default_rng(0).random(200_001) < 0.7
    np.save(tmp_path / "bits.npy", pack(chosen))
    selection = Selection(np.load(tmp_path / "bits.npy", mmap_mode="r"), len(chosen))
    positions = np.random.default_rng(1).permutation(selection.count)
    samples = selection.select(positions)
    assert type(samples) is np.ndarray
    assert samples.tolist() == np.flatnonzero(chosen)[positions].tolist()
    assert selection.rank(samples).tolist() == positions.tolist()


def test_what_is_not_there_is_refused():
    selection = Selection(pack(np.arange(20) < 5), 20)
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match=f"{wrong} is not in 0 ... 4"):
            selection.select([0, wrong])
    for wrong in (-1, 21):
        with pytest.raises(IndexError, match=f"{wrong} is not in 0 ... 20"):
            selection.rank([0, wrong])


@pytest.mark.parametrize(
    ("bits", "size", "message"),
    [
        (np.zeros(3, np.uint8), 25, "of these samples"),
        (np.zeros(4, np.int64), 25, "of these samples"),
        (np.full(4, 255, np.uint8), 25, "past the end"),
    ],
)
def test_a_bitmap_of_another_dataset_is_refused(bits, size, message):
    with pytest.raises(AssertionError, match=message):
        Selection(bits, size)
