"""Loss, labels, tokens and samples by dataset of a mixture."""

import json
import re
from collections import Counter, defaultdict

import pytest
import torch

from datapipe import PackSpec
from examples.vlm.data.batches import IGNORE
from examples.vlm.measure.by_dataset import MOST, DatasetFigures, dataset_table
from examples.vlm.model.inputs import following, make_inputs
from examples.vlm.parallel.ranks import Ranks

from .mesh_ranks import SHARES, dataset_of, named, sums_of
from .test_vlm_model import FIXED, load, losses_of, make_model
from .test_vlm_model import by_key as losses_by_key
from .vlm_runs import PACKED, fit

ALONE = Ranks(0, 1, torch.device("cpu"))
SHAPES = [
    {"batch_size": 4},
    {"pack": 300},
    {"pack": 300, "batch_size": 2},
    {"pack": PackSpec(256, multiple_of=16)},
    {"pack": PackSpec(300, static_shapes=True, max_images=9)},
]


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_they_are_those_of_the_samples_alone(shards, options):
    model, sums = make_model("plain"), sums_of(ALONE)
    losses = defaultdict(float)
    labels = Counter()
    tokens = Counter()
    with torch.no_grad():
        for batch in load(shards, FIXED, batch_size=1):
            name = dataset_of(batch["key"][0])
            labels[name] += int((batch["labels"] != -100).sum())
            tokens[name] += batch["input_ids"].numel()
            losses[name] += sum(part.sum().item() for _, part in losses_by_key(model, batch))
        for batch in map(named, load(shards, FIXED, **options)):
            targets = make_inputs(batch, model.config, model.kernel).targets
            sums.add(batch, targets, losses_of(model, batch))
    padded = isinstance(options.get("pack"), PackSpec) and options["pack"].multiple_of > 1
    for each in sums.since_last()[1:]:
        assert each.loss == pytest.approx(losses[each.name] / labels[each.name], rel=1e-9)
        assert each.labels == labels[each.name]
        assert padded or each.tokens == tokens[each.name]
    figures = sums.of_run()
    assert sum(each.samples for each in figures) == 25  # without the repeats of the last step
    assert sum(each.share for each in figures) == pytest.approx(1)
    assert {each.name: each.planned for each in figures} == SHARES
    assert figures[0]._replace(planned=0) == DatasetFigures("never", None, 0, 0, 0, 0, 0)


def test_every_token_counts_for_the_dataset_of_its_own_segment():
    """Also the first and the last of a segment, which chat templates seldom let learn."""
    sums, losses = sums_of(ALONE), 2.0 ** torch.arange(12)
    batch = {
        "dataset": ["odd", "", "even", "odd", "ninth"],
        "valid": torch.tensor([True, False, True, True, False]),
        # An empty slot, and two segments of padding behind the samples.
        "cu_seq_lens_q": torch.tensor([0, 2, 2, 5, 6, 8, 12, 12], dtype=torch.int32),
    }
    targets = torch.zeros(12, dtype=torch.int64)
    targets[3] = IGNORE
    losses[3] = 0
    sums.add(batch, targets, losses)
    none, even, odd, ninth = sums.since_last()
    assert (even.loss, even.labels, even.tokens, even.samples) == ((4 + 16) / 2, 2, 3, 1)
    assert (odd.loss, odd.labels, odd.tokens, odd.samples) == ((1 + 2 + 32) / 3, 3, 3, 2)
    assert odd.share == pytest.approx(2 / 3)
    assert [none[1:], ninth[1:]] == [
        (None, 0, 0, 0, 0, SHARES[name]) for name in ("never", "ninth")
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_sums_on_a_gpu_wait_for_nothing(shards, options):
    gpu = Ranks(0, 1, torch.device("cuda"))
    here, there = sums_of(ALONE), sums_of(gpu)
    for batch in map(named, load(shards, FIXED, **options)):
        targets = following(batch["labels"]).flatten()
        losses = torch.rand(len(targets)) * (targets != IGNORE)
        moved = {
            name: value.cuda() if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        arguments = targets.cuda(), losses.cuda()
        here.add(batch, targets, losses)
        torch.cuda.set_sync_debug_mode("error")
        try:
            there.add(moved, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(here.since_last(), there.since_last(), strict=True):
        assert one._replace(loss=None) == other._replace(loss=None)
        assert (one.loss or 0) == pytest.approx(other.loss or 0, rel=1e-9)


@pytest.mark.usefixtures("small_model")
def test_a_run_on_a_mixture_logs_and_reports_them(shards, tmp_path, capfd):
    path, given = tmp_path / "mixture.json", {"often": 3, "rare": 1}
    datasets = {name: {"path": str(shards), "weight": weight} for name, weight in given.items()}
    path.write_text(json.dumps({"datasets": datasets, "epoch": 40}))
    report = fit(path, "--batch-size", 4, "--accumulate", 2, "--steps", 5, "--log-every", 2)
    found = {each.name: (each.samples, each.share, each.planned) for each in report.datasets}
    assert found == {"often": (30, 0.75, 0.75), "rare": (10, 0.25, 0.25)}
    assert report.to_dict()["datasets"][1]["name"] == "rare"
    said = re.sub(r"(?<=\d),(?=\d)", "", capfd.readouterr().err)
    assert re.findall(r"^step +(\d+)", said, re.MULTILINE) == ["2", "4", "5"]
    # Steps of the warm-up are in the losses, and so they are here.
    figures = re.findall(r"^ +(\w+) +loss +(\S+) +(\d+) labels +(\d+) tokens", said, re.MULTILINE)
    for each in report.datasets:
        lines = [list(map(int, line[2:])) for line in figures if line[0] == each.name]
        assert [each.labels, each.tokens] == [sum(column) for column in zip(*lines, strict=True)]
    # The last line covers one step.
    counts = [(float(loss), int(labels)) for _, loss, labels, _ in figures[-2:]]
    total = sum(loss * labels for loss, labels in counts)
    assert total / sum(n for _, n in counts) == pytest.approx(report.losses[-1], rel=1e-3)
    assert fit(shards, *PACKED, "--steps", 1).datasets == ()  # of one folder


def test_tables_show_the_largest_of_many_datasets():
    figures = tuple(
        DatasetFigures(f"set {n}", None if n % 2 else 2.5, n, 10 * n, n, 0.25, n / 1000)
        for n in range(50)
    )
    lines = dataset_table(figures).splitlines()
    assert len(lines) == MOST + 1
    wanted = "set 49 loss - 49 labels 490 tokens 25.0% of samples (plan 4.9%)"
    assert " ".join(lines[0].split()) == wanted
    assert lines[-1].strip() == f"and {50 - MOST} more datasets"
