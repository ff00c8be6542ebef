"""The loss over a held-out dataset is the mean over all its labels, however they are batched."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from examples.vlm import train as program
from examples.vlm.data.batches import IGNORE
from examples.vlm.evaluate import evaluate
from examples.vlm.options import parse
from examples.vlm.parallel.ranks import Ranks

from .tensor_reads import Reads
from .test_vlm_model import FIXED, doubled, load, losses_alone, make_model
from .vlm_runs import PACKED, fit

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    "options", [{"pack": 300}, {"batch_size": 7}, {"pack": 300, "batch_size": 2}], ids=str
)
def test_it_is_the_mean_over_samples_one_by_one(shards, options):
    """Seven does not divide 25: repeats in the last batch must not count."""
    model, alone = make_model("split"), losses_alone(shards, "fixed", "split")
    total = float(sum(losses.sum() for losses in alone.values()))
    labels = sum(batch["num_items_in_batch"] for batch in load(shards, FIXED, batch_size=1))
    batches = map(doubled, load(shards, FIXED, shuffle=False, **options))
    found = evaluate(model, batches, ALONE, step=3)
    assert (found.step, found.labels) == (3, labels)
    assert found.loss == pytest.approx(total / labels, rel=1e-12)


def test_the_device_is_read_once_and_the_model_is_left_as_it_was(shards):
    model = make_model("split").train()
    modes = []
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))
    with Reads() as reads:
        evaluate(model, map(doubled, load(shards, FIXED, pack=300)), ALONE)
    read = [tensor.numel() for tensor in reads.tensors if tensor.dtype == torch.float64]
    assert sum(read) == 2  # the sum of the losses and the number of labels
    assert modes
    assert not any(modes)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_samples_without_labels_are_refused(shards):
    batches = (
        batch | {"labels": torch.full_like(batch["labels"], IGNORE)}
        for batch in map(doubled, load(shards, FIXED, batch_size=5))
    )
    with pytest.raises(ValueError, match="its samples have no labels"):
        evaluate(make_model("split"), batches, ALONE)


@pytest.mark.usefixtures("small_model")
def test_a_run_is_evaluated_on_the_way_and_at_the_end_and_learns_the_same(
    shards, tmp_path, runs, capfd
):
    plain = fit(shards, *PACKED, "--steps", 7, "--dropout", 0.2)
    report = fit(
        *(shards, *PACKED, "--steps", 7, "--dropout", 0.2),
        *("--evaluate", shards, "--evaluate-every", 3),
    )
    assert plain.losses == report.losses
    assert [one.step for one in report.evaluations] == [3, 6, 7]
    losses = [one.loss for one in report.evaluations]
    assert losses == sorted(losses, reverse=True)
    assert "held-out loss" in capfd.readouterr().err
    assert json.loads(json.dumps(report.to_dict()))["evaluations"][-1]["loss"] == losses[-1]
    other = fit(shards, *PACKED, "--steps", 7, "--dropout", 0.2, "--evaluate", shards)
    assert [one.loss for one in other.evaluations] == losses[-1:]
    assert math.isfinite(losses[-1])


@pytest.mark.usefixtures("small_model")
def test_the_watch_sees_every_batch_of_an_evaluation(shards):
    line = [shards, *PACKED, "--steps", 1, "--device", "cpu", "--evaluate", shards]
    places = []
    watch = SimpleNamespace(mark=lambda *place: places.append(place))
    program.run(parse(list(map(str, line)), ""), ALONE, watch)
    assert places.count(("evaluating", 1)) == len(load(shards, FIXED, pack=300))
