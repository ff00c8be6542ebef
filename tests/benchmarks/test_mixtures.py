"""Datasets, shares, phases of ranks and tables of `benchmarks.mixtures`; nothing is timed."""

import doctest

import numpy as np
import pytest

import benchmarks.mixtures.__main__ as mixtures
import datapipe
from benchmarks import common
from benchmarks.common import Absent, Result, Run
from benchmarks.mixtures import beside, data, opening, realised
from benchmarks.mixtures.data import joined, small, synthetic, text_spec, weights
from benchmarks.mixtures.ranks import Memory, Peak, Rank, Ranks, Seen
from benchmarks.mixtures.realised import deviation, order_of
from benchmarks.peers import mixture_plan
from datapipe.index.dataset import open_dataset
from tests.imports import IMPORTS

SAMPLES = 3000


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """Make all datasets in a folder of the tests."""
    folder = tmp_path_factory.mktemp("mixtures")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.setenv("PYTHONPATH", IMPORTS["PYTHONPATH"])
    yield
    patch.undo()


@pytest.mark.parametrize("module", [common, data, beside, realised])
def test_examples_hold(module):
    found = doctest.testmod(module, extraglobs={"np": np})
    assert found.failed == 0
    assert found.attempted > 0


def test_linked_datasets_share_files_and_have_fingerprints_of_their_own():
    folders = synthetic(5, SAMPLES, kinds=2)
    opened = [open_dataset(folder) for folder in folders]
    assert len({dataset.manifest.fingerprint for dataset in opened}) == 5
    first, second, third = (folder / "columns" / "sample_image.npy" for folder in folders[:3])
    assert first.samefile(third)
    assert not first.samefile(second)


def test_columns_of_a_dataset_without_bytes_are_those_of_its_lengths():
    folder = synthetic(2, SAMPLES, kinds=2)[1]
    text, images = data.lengths(SAMPLES, 1, 2)
    dataset = open_dataset(folder)
    assert (np.diff(dataset.columns.sample_image) == images).all()
    assert (np.diff(dataset.columns.sample_member) == images + 1).all()
    both = np.diff(open_dataset(joined(SAMPLES, kinds=2)).columns.sample_image)
    for kind in (0, 1):
        assert (both[kind::2] == data.lengths(SAMPLES // 2, kind, 2)[1]).all()
    sizes = next(steps(folder)).units.sizes
    assert (sizes.tokens >= 10).all()
    assert set(sizes.tokens.tolist()) <= set((text + 144 * images).tolist())


def test_small_datasets_have_sizes_by_their_weights_and_are_linked():
    folders = small(3, 60, links=2)
    assert [len(open_dataset(folder)) for folder in folders] == [10, 20, 30] * 2
    assert (folders[0] / "shard-000000.tar").samefile(folders[3] / "shard-000000.tar")
    assert (folders[0] / ".nv-meta" / "split.yaml").exists()


def test_the_largest_deviation_is_that_of_the_worst_window():
    even = np.tile([0, 1], 50)
    assert deviation(even, np.array([0.5, 0.5]), 10) == (0, 0)
    uneven = np.concatenate([even, [1] * 10, even])
    assert deviation(uneven, np.array([0.5, 0.5]), 10)[0] == 0.5


def test_a_plan_is_read_over_its_epochs():
    folders = synthetic(2, SAMPLES, kinds=2)
    given = dict(zip(map(str, folders), weights(2).tolist(), strict=True))
    found = order_of(given, 5 * SAMPLES, batch_size=8)
    assert len(found) == 5 * SAMPLES
    assert 0 <= found.min() < found.max() < 2 * SAMPLES
    assert (found[: 3 * SAMPLES] >= SAMPLES).mean() == pytest.approx(2 / 3, abs=0.01)


def test_fill_and_imbalance_are_those_of_packs():
    found = mixture_plan.balance(steps(synthetic(2, SAMPLES, kinds=2)[0]), 8192, 4)
    assert 0.9 < found["fill"] <= 1
    assert 0 <= found["text"] < 0.3
    assert 0 <= found["images"] < 0.5


def steps(folder):
    """Plan packs of four ranks."""
    spec = text_spec()
    loader = datapipe.make_loader(folder, text=spec, pack=8192, rank=0, world_size=4)
    return iter(loader.plan.steps())


@pytest.mark.campaign
def test_ranks_stop_together_after_each_phase():
    options = {
        "weights": {str(synthetic(2, SAMPLES, kinds=2)[0]): 1},
        "text": {
            "tokenizer": str(text_spec().tokenizer),
            "template": "chatml",
            "image_tokens": 144,
        },
        "capacity": 8192,
        "blocks": 1,
        "world": 4,
    }
    ranks = [Rank(f"r{n}", "mixture_plan.run", {**options, "rank": n}, ours=True) for n in (0, 1)]
    with Ranks(ranks) as group:
        phases = []
        for phase, facts in group.phases():
            phases.append(phase)
            assert len(facts) == 2
            assert all(0 < seen.memory.uss <= seen.memory.pss for seen in group.look())
    assert phases == ["imports", "open", "first step", "blocks", "end"]


def test_a_rank_that_fails_says_why_while_others_wait():
    ranks = [Rank(f"f{n}", "mixture_plan.run", {"unknown": n}, ours=True) for n in (0, 1)]
    with Ranks(ranks) as group, pytest.raises(Absent, match=r"TypeError.*unknown"):
        next(group.phases())


def test_a_peak_is_the_most_at_one_moment():
    peak = Peak()
    peak.add([Seen(Memory(1, 1, 1), 3, 1), Seen(Memory(5, 4, 3), 2, 1)])
    peak.add([Seen(Memory(4, 4, 4), 1, 1), Seen(Memory(1, 1, 1), 1, 1)])
    assert peak.total == Memory(6, 5, 5)
    assert peak.rank == Memory(5, 4, 4)
    assert peak.files == 3


def test_a_mixture_that_cannot_be_read_is_said_to_be_missing():
    one = Result(name="one", note="", runs=[Run(samples=10, seconds=1.0)])
    half = Result(name="half", note="", runs=[Run(samples=10, seconds=2.0)])
    gone = Result(name="gone", note="", missing="not built")
    rows = list(mixtures.ratios([one, half, gone]))
    assert [row.get("x one dataset") for row in rows] == [1.0, 0.5, None]
    assert rows[2]["missing"] == "not built"
    assert opening.aim("fill", 0.9985, 0.999, least=True)["reached"] == "no"
    assert opening.aim("files", 64, 64)["reached"] == "yes"
