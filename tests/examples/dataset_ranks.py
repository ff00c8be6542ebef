"""One of two processes that sum losses by dataset, started by `test_vlm_by_dataset.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import datapipe
from examples.vlm.data.accumulate import LABELS, labels_of
from examples.vlm.loop import train_step
from examples.vlm.measure.by_dataset import DatasetFigures, DatasetSums
from examples.vlm.parallel.mesh import make_mesh
from examples.vlm.parallel.ranks import Ranks

from .mesh_ranks import CONFIG, make_run
from .test_vlm_model import FIXED, load
from .vlm_runs import group_of, outcome

RANKS = 2
SHARES = {"never": 0.1, "even": 0.4, "odd": 0.3, "ninth": 0.2}
META = ("key", "valid", "num_items_in_batch")
CASES: dict[str, dict[str, Any]] = {
    "ddp padded": {"batch_size": 3},
    "ddp packed": {"pack": 300},
    "fsdp packed": {"pack": 300, "kind": "fsdp"},
    "context": {"pack": datapipe.PackSpec(300, multiple_of=2), "context": 2},
    "tensor": {"pack": 300, "tensor": 2},
}


def dataset_of(key: str) -> str:
    number = int(key)
    return "ninth" if number == 9 else "odd" if number % 2 else "even"


def named(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch whose samples are of several datasets, as those of a mixture are."""
    return batch | {"dataset": [dataset_of(key) for key in batch["key"]]}


def groups(shards: Path, count: int = 2, **options: Any) -> Iterator[list[dict[str, Any]]]:
    """All batches of an epoch in groups."""
    group = []
    for batch in load(shards, FIXED, **options):
        group.append(named(batch))
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group


def sums_of(ranks: Ranks) -> DatasetSums:
    return DatasetSums(lambda: SHARES, ranks)


def check_total(figures: tuple[DatasetFigures, ...], loss: float, labels: int) -> None:
    """Losses by dataset, weighted by labels, are that of the step."""
    assert sum(each.labels for each in figures) == labels
    total = sum((each.loss or 0) * each.labels for each in figures)
    assert total / labels == pytest.approx(loss, rel=1e-9)


def check(shards: Path, case: dict[str, Any]) -> None:
    sizes = {name: value for name, value in case.items() if name in ("batch_size", "pack")}
    ranks = Ranks(dist.get_rank(), RANKS, torch.device("cpu"))
    tensor, context = case.get("tensor", 1), case.get("context", 1)
    data = RANKS // (tensor * context)
    if data == 1:
        ranks = ranks._replace(mesh=make_mesh(ranks, tensor, context))
    kernel = "split" if ranks.mesh is not None else "plain"
    run = make_run(CONFIG, ranks, kernel, case.get("kind", "ddp"))
    alone = make_run(CONFIG, Ranks(0, 1, ranks.device), kernel, "ddp")
    sums, wanted = sums_of(ranks), sums_of(alone.ranks)
    own = list(groups(shards, rank=ranks.rank % data, world_size=data, meta=META, **sizes))
    every: list[Any] = [None] * RANKS
    dist.all_gather_object(every, own)
    seen: list[set[str]] = [set() for _ in range(RANKS)]
    samples = 0
    for step, group in enumerate(own):
        loss = ranks.total(train_step(run, group, sums))
        figures = sums.since_last()
        # The labels of a step are known to all ranks, and count once.
        of_all = list(group)
        for other in range(1, data):
            peer = every[(ranks.rank + other) % data]
            of_all += [batch | {LABELS: 0} for batch in peer[step]]
        train_step(alone, of_all, wanted)
        expected = wanted.since_last()
        check_total(figures, loss.item(), labels_of(group))
        for one, two in zip(figures, expected, strict=True):
            assert one._replace(loss=None) == two._replace(loss=None)
            assert (one.loss is None) == (two.loss is None)
            assert one.loss is None or one.loss == pytest.approx(two.loss, rel=1e-9)
        samples += sum(each.samples for each in figures)
        for rank, batches in enumerate(every):
            seen[rank].update(*(batch["dataset"] for batch in batches[step]))
    assert samples == 25  # repeats at the end of the epoch do not count
    assert data == 1 or seen[0] != seen[1]  # a rank has not seen a dataset


def main(shards: str, folder: str, rank: str) -> None:
    with group_of(RANKS, folder, rank):
        found = {
            name: outcome(partial(check, Path(shards), case))["error"]
            for name, case in CASES.items()
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
