"""Trainers that people have, on packs: the losses of a plain loop, and again after a kill."""

import gc
import json
import signal
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForImageTextToText

import datapipe
from tests.ports import free_port

from ..models.losses import META, assert_losses, losses_alone
from .trainer_runs import EXAMPLES, FOLDER, PACK, Process

STEPS = 8  # into the second epoch, of 7 packs
EACH = [
    pytest.param(
        example,
        id=name,
        marks=pytest.mark.skipif(
            find_spec(example.package) is None,
            reason=f"{example.package} is not installed; `make install` does it",
        ),
    )
    for name, example in EXAMPLES.items()
]


def two_ranks(line, folder):
    """Start an example in two processes that find each other."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "1",
    }
    return [
        Process(line, folder / f"rank-{rank}", RANK=str(rank), LOCAL_RANK=str(rank), **common)
        for rank in range(2)
    ]


def test_every_file_is_a_short_example_that_is_tested():
    files = list(FOLDER.glob("*.py"))
    assert {path.stem for path in files} == set(EXAMPLES)
    assert max(len(path.read_text().splitlines()) for path in files) < 80


def test_samples_of_a_pack_have_the_losses_that_they_have_alone(checkpoint, shards):
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
    common = {"model": checkpoint, "meta": META, "num_workers": 0}
    alone = losses_alone(model, datapipe.make_loader(shards, **common, batch_size=1))
    assert_losses(model, datapipe.make_loader(shards, **common, pack=PACK), alone, samples=25)


@pytest.mark.campaign
@pytest.mark.parametrize("example", EACH)
def test_a_killed_run_goes_on_by_the_same_command_with_the_same_packs_and_losses(
    example, checkpoint, shards, tmp_path
):
    whole = Process(example.line(checkpoint, shards, tmp_path / "a", STEPS), tmp_path / "whole")
    line = example.line(checkpoint, shards, tmp_path / "b", STEPS)
    killed = Process(line, tmp_path / "killed", KILL_AT="5")
    assert killed.wait() == -signal.SIGKILL, killed.errors
    (tmp_path / "b" / example.incomplete).mkdir(exist_ok=True)
    resumed = Process(line, tmp_path / "resumed")
    assert whole.wait() == 0, whole.errors
    assert resumed.wait() == 0, resumed.errors

    steps = list(whole.losses.items())
    assert [step for step, _ in steps] == list(range(1, STEPS + 1))
    assert len(set(whole.losses.values())) == STEPS
    plain = example.plain_losses(checkpoint, shards, STEPS, 1)
    assert list(whole.losses.values()) == pytest.approx(plain, rel=1e-5)
    assert len(set(whole.batches)) == STEPS
    assert list(killed.losses.items()) == steps[:5]
    assert list(resumed.losses.items()) == steps[3:]
    assert killed.batches == whole.batches[:5]
    assert resumed.batches == whole.batches[3:]


@pytest.mark.campaign
@pytest.mark.parametrize("example", EACH)
def test_the_labels_of_accumulated_packs_count_the_same_and_a_finished_run_does_nothing(
    example, checkpoint, shards, tmp_path
):
    accumulate = 2 if example.accumulates else 1
    line = example.line(checkpoint, shards, tmp_path / "out", STEPS, accumulate)
    run = Process(line, tmp_path / "run")
    plain = example.plain_losses(checkpoint, shards, STEPS, accumulate)
    assert run.wait() == 0, run.errors
    assert list(run.losses.values()) == pytest.approx(plain, rel=1e-5)
    again = Process(line, tmp_path / "again")
    assert again.wait() == 0, again.errors
    assert again.losses == {}


@pytest.mark.campaign
@pytest.mark.parametrize("example", EACH)
def test_two_ranks_learn_what_one_does_with_two_packs_a_step(example, checkpoint, shards, tmp_path):
    steps = 3
    line = example.line(checkpoint, shards, tmp_path / "out", steps)
    ranks = two_ranks(line, tmp_path)
    plain = example.plain_losses(checkpoint, shards, steps, 2)
    for rank in ranks:
        assert rank.wait() == 0, rank.errors
    assert list(ranks[0].losses.values()) == pytest.approx(plain, rel=1e-4)
    assert not set(ranks[0].batches) & set(ranks[1].batches)


@pytest.mark.campaign
def test_one_rank_goes_on_where_two_were_in_the_loop_as_in_torchtitan(checkpoint, shards, tmp_path):
    example = EXAMPLES["train_torchtitan"]
    out = tmp_path / "out"
    for rank in two_ranks(example.line(checkpoint, shards, out, 3), tmp_path):
        assert rank.wait() == 0, rank.errors
    whole = Process(example.line(checkpoint, shards, tmp_path / "whole", 7), tmp_path / "one")
    alone = Process(example.line(checkpoint, shards, out, 4), tmp_path / "alone")
    assert alone.wait() == whole.wait() == 0, alone.errors
    assert list(alone.losses) == [4]
    assert alone.batches == whole.batches[6:]


@pytest.mark.campaign
def test_the_datasets_of_a_mixture_may_change_in_the_loop_as_in_torchtitan(
    checkpoint, shards, tmp_path
):
    mixture, out = tmp_path / "mixture.yaml", tmp_path / "out"
    runs = [{"a": 2, "b": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 1}, {"a": 1, "c": 1}]
    for number, weights in enumerate(runs, 1):
        parts = [{"name": n, "path": str(shards), "weight": w} for n, w in weights.items()]
        mixture.write_text(json.dumps({"datasets": parts}))
        line = EXAMPLES["train_torchtitan"].line(checkpoint, mixture, out, 2 * number)
        run = Process(line, tmp_path / str(number))
        assert run.wait() == 0, run.errors
        assert list(run.losses) == [2 * number - 1, 2 * number]


@pytest.mark.parametrize("example", EACH)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_path_ends_with_one_line(example, checkpoint, tmp_path, run_program):
    with pytest.raises(SystemExit, match=f"{example.name}: .*/none: no such folder; give the one"):
        run_program(example.line(checkpoint, tmp_path / "none", tmp_path, STEPS))
    gc.collect()  # frameworks keep what they have in reference cycles
