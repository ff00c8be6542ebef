"""Packs of the ranks of a step: balanced by datapipe's plan, or each rank's own.

Pack k belongs to rank `k % ranks` of step `k // ranks`. Samples are those of `benchmarks.plan`:
short captions mixed with long documents, with 0 to 8 images.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.plan import best_fit_decreasing, vlm_lengths
from datapipe.array_types import Float64, Int64
from datapipe.loader.schedule.block_cache import PlannedBlocks
from datapipe.plan import EpochPlan, PlanOptions, Position, Sizes, Source, Units, walk
from datapipe.plan.groups import lay_out
from datapipe.plan.ragged import edges

BUFFER = 1000
"""Samples that a rank without a plan packs together."""


class Cost(NamedTuple):
    """Seconds of a pack: of each token, each pair of tokens of one sample, and each image.

    Images of one size have the same patches and pairs of patches, so one term has both.
    """

    token: float
    pair: float
    image: float

    def of(self, units: Units) -> Float64:
        seconds: Float64 = terms(units) @ np.array(self)
        return seconds


def terms(units: Units) -> Float64:
    """Return tokens, sum of squared lengths and images of each pack: float64 [packs, 3]."""
    sizes = units.sizes
    assert sizes is not None
    columns = sizes.tokens, sizes.tokens**2, sizes.images
    return np.stack([units.total(column) for column in columns], axis=1).astype(np.float64)


def fit(units: Units, seconds: Float64) -> tuple[Cost, float]:
    """Return the cost that comes closest to measured packs, and the variance it explains (R²)."""
    features = terms(units)
    scale = features.max(0).clip(1)  # squares of lengths are a million times the images
    found = np.linalg.lstsq(features / scale, seconds, rcond=None)[0] / scale
    if found.min() <= 0:
        raise ValueError(
            f"{len(seconds)} packs gave a cost of {found.tolist()} s a token, pair and image, and "
            "each is above 0; measure more steps, on a quieter machine"
        )
    rest = seconds - features @ found
    return Cost(*found.tolist()), float(1 - rest.var() / seconds.var())


def draw(samples: int, capacity: int, image_tokens: int) -> Sizes:
    """Draw the sizes of samples; those longer than a pack are left out."""
    tokens, images, _ = vlm_lengths(samples, str(image_tokens))
    fits = tokens <= capacity
    tokens, images = tokens[fits], images[fits]
    vision = images * image_tokens
    return Sizes(tokens=tokens, labels=tokens, images=images, vision=vision, rows=images)


def balanced(sizes: Sizes, capacity: int, ranks: int, cost: Cost | None = None) -> Units:
    """Return the packs of an epoch of datapipe, laid out by `cost` if it is given."""
    options = PlanOptions(shuffle=True, seed=0, pack=capacity, group=max(64, ranks))
    source = Source.of_dataset(len(sizes.tokens), options, measure=sizes.__getitem__)
    plan = EpochPlan(source, options, 0)
    if cost is not None:
        plan.lay_out = partial(_by_cost, cost, options.group)  # type: ignore[method-assign]
    blocks = PlannedBlocks(plan, None, ahead=False)
    steps = walk(blocks, Position(0), share=ranks, drop_last=True)
    return Units.join([step.units for step in steps])


def _by_cost(cost: Cost, group: int, units: Units, block: int, before: int) -> Units:
    """Lay a block out as the plan does, but by the seconds of packs."""
    seconds = (1e9 * cost.of(units)).astype(np.int64)
    none = np.zeros_like(seconds)
    return units.take(lay_out(seconds, none, group=group, phase=before % group, key=block))


def round_robin(sizes: Sizes, capacity: int, ranks: int) -> Units:
    """Return packs of ranks that take every `ranks`-th sample and pack them for themselves."""
    own = [_packs_of(sizes, capacity, rank, ranks) for rank in range(ranks)]
    steps = min(map(len, own))
    packs = [own[rank][step] for step in range(steps) for rank in range(ranks)]
    samples = np.concatenate(packs)
    return Units(samples, edges(np.array([len(pack) for pack in packs])), sizes[samples])


def _packs_of(sizes: Sizes, capacity: int, rank: int, ranks: int) -> list[Int64]:
    numbers = np.arange(rank, len(sizes.tokens), ranks)
    random = np.random.default_rng(rank)
    packs = []
    for start in range(0, len(numbers), BUFFER):
        buffer = numbers[start : start + BUFFER]
        found = best_fit_decreasing(sizes.tokens[buffer], capacity)
        # In random order, since the packs of long samples come first.
        packs += [buffer[found[pack]] for pack in random.permutation(len(found))]
    return packs


def imbalance(costs: Float64) -> float:
    """Return the slowest rank's cost by the mean, over all steps: float64 [steps, ranks]."""
    return float(costs.max(1).sum() / costs.mean(1).sum())


def simulate(cost: Cost, capacity: int, image_tokens: int) -> Iterator[dict[str, object]]:
    """Yield the expected throughput of many ranks, by the cost of their packs alone."""
    for ranks in (4, 64, 1024):
        # Three blocks of the plan, or two buffers a rank.
        sizes = draw(max(3 << 16, 2 * BUFFER * ranks), capacity, image_tokens)
        ways = {
            "round-robin": round_robin(sizes, capacity, ranks),
            "datapipe": balanced(sizes, capacity, ranks),
            "limit": balanced(sizes, capacity, ranks, cost),
        }
        rates = {}
        row: dict[str, object] = {"ranks": ranks, "steps": len(ways["datapipe"]) // ranks}
        for way, units in ways.items():
            costs = cost.of(units).reshape(-1, ranks)
            assert units.sizes is not None
            rates[way] = float(units.sizes.tokens.sum() / costs.max(1).sum())
            row[f"slowest / mean, {way}"] = round(imbalance(costs), 3)
        for way in ("datapipe", "limit"):
            row[f"{way} / round-robin"] = round(rates[way] / rates["round-robin"], 3)
        yield row
