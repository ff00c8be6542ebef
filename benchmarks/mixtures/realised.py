"""Shares that a mixture realises, and its order by ranks and workers."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import count, pairwise, product
from typing import Any

import numpy as np

import datapipe
from benchmarks.common import Row
from benchmarks.mixtures.data import CAPACITY, SIDE, small, synthetic, text_spec, weighted, weights
from benchmarks.mixtures.opening import aim
from datapipe.array_types import Float64, Int64
from datapipe.index.manifest import read_manifest
from datapipe.plan.ragged import edges

WINDOW = 10_000  # consecutive samples
AIM = 0.1  # percent of the window
WORLDS, WORKERS = (1, 4, 64), (0, 4)
STEP = 64  # units of a step over all ranks
DATASETS = 20
_SYNTHETIC = 100_000  # samples of each dataset
_SMALL = 20_000  # of all datasets that are read
_PACK = 2048


def realised(draws: int) -> Iterator[Row]:
    """Yield the deviation of shares from the weights in any window of the first `draws` samples."""
    folders = synthetic(DATASETS, _SYNTHETIC, kinds=5)
    given = weighted(folders)
    rates = weights(DATASETS) / weights(DATASETS).sum()
    offsets = edges(np.array([read_manifest(folder).samples for folder in folders]))
    packed = {"pack": CAPACITY, "group": STEP, "text": text_spec()}
    orders = {
        "of the plan": order_of(given, draws, batch_size=STEP),
        "after packing": order_of(given, draws, **packed),
    }
    found = {name: offsets.searchsorted(each, side="right") - 1 for name, each in orders.items()}
    drawn = np.random.default_rng(0).choice(DATASETS, draws, p=rates)
    for name, each in (found | {"drawn independently, to compare": drawn}).items():
        most, typical = deviation(each, rates, WINDOW)
        yield {
            "order": name,
            "samples": draws,
            "datasets": DATASETS,
            "windows": draws - WINDOW + 1,
            "largest deviation, %": round(100 * most, 3),
            "root mean square, %": round(100 * typical, 4),
        }


def order_of(given: dict[str, int], draws: int, **options: Any) -> Int64:
    """Return the global sample numbers of the first samples of a run: int64 [draws]."""
    loader = datapipe.make_loader(given, rank=0, world_size=1, num_workers=0, **options)
    parts: list[Int64] = []
    missing = draws
    for epoch in count():
        for step in loader.plan.steps(epoch=epoch):
            parts.append(step.units.numbers)
            missing -= len(parts[-1])
            if missing <= 0:
                return np.concatenate(parts)[:draws]
    raise AssertionError("epochs do not end")


def deviation(found: Int64, rates: Float64, window: int) -> tuple[float, float]:
    """Return the deviation of the shares in all windows of an order from the rates.

    It is the largest difference, and the root of the mean of its squares, as shares of the window.
    `found` has the dataset of each sample: int64 [n].

    Examples:
        >>> deviation(np.array([0, 1, 0, 1, 1]), np.array([0.5, 0.5]), window=2)
        (0.5, 0.25)
    """
    most, squares = 0.0, 0.0
    for number, rate in enumerate(rates.tolist()):
        before = np.concatenate(([0], np.cumsum(found == number)))
        off = np.abs((before[window:] - before[:-window]) / window - rate)
        most = max(most, float(off.max()))
        squares += float((off**2).mean()) / len(rates)
    return most, squares**0.5


def orders(steps: int) -> Iterator[Row]:
    """Yield a digest of the order in which some steps are read, by ranks and workers."""
    given = weighted(small(DATASETS, _SMALL))
    for kind, options in (
        ("samples", {}),
        ("packs", {"pack": _PACK, "group": STEP, "text": text_spec()}),
    ):
        expected = None
        for world, workers in product(WORLDS, WORKERS):
            found = [_read(given, world, workers, steps, options, n) for n in range(world)]
            order = [unit for step in zip(*found, strict=True) for unit in dealt(step)]
            digest = hashlib.sha256(repr(order).encode()).hexdigest()[:16]
            expected = expected or digest
            row: Row = {"units": kind, "ranks": world, "workers": workers}
            row |= {"samples read": sum(map(len, order)), "digest": digest}
            yield row | {"the same": "yes" if digest == expected else "no"}


Unit = list[tuple[str, str]]  # dataset and key of each sample


def _read(
    given: dict[str, int], world: int, workers: int, steps: int, options: dict[str, Any], rank: int
) -> list[list[Unit]]:
    """Return the units of each step of one rank, as they are in its batches."""
    loader = datapipe.make_loader(
        given,
        batch_size=STEP // world,
        image=datapipe.ImageSpec(size=SIDE),
        meta=("dataset", "key", "sample"),
        rank=rank,
        world_size=world,
        num_workers=workers,
        **options,
    )
    found = []
    planned = loader.plan.steps()
    for batch, step, _ in zip(loader, planned, range(steps), strict=False):
        share = step.share(units_per_rank=STEP // world, rank=rank, world_size=world)
        samples = list(zip(batch["dataset"], batch["key"], strict=True))
        planned_here = share.units.numbers.tolist()
        assert list(batch["sample"]) == planned_here, "a batch has other samples than the plan"
        found.append([samples[a:b] for a, b in pairwise(share.units.offsets.tolist())])
    loader.close()
    return found


def dealt(step: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the units of a step in the plan's order, given those of each rank.

    Examples:
        >>> dealt([["a", "c"], ["b", "d"]])
        ['a', 'b', 'c', 'd']
    """
    return [unit for slot in zip(*step, strict=True) for unit in slot]


def verdicts(shares: list[Row], digests: list[Row]) -> list[Row]:
    others = sum(row["the same"] != "yes" for row in digests)
    off = "largest deviation, %"
    bars = [aim(f"deviation {row['order']}, %", row[off], AIM) for row in shares[:2]]
    return [*bars, aim("ranks and workers with another order", others, 0)]
