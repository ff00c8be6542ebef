"""Plan of datapipe for one rank: opened, first step, then some blocks; no byte is read.

Phases: "imports", "open", "first step", "blocks" with fill and imbalance, "end".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.child import Say

if TYPE_CHECKING:
    from datapipe.plan import Step


def run(
    say: Say,
    *,
    weights: dict[str, float],
    text: dict[str, Any],
    capacity: int,
    blocks: int,
    rank: int,
    world: int,
) -> None:
    """Plan packs of `capacity` tokens, and walk some blocks of the plan.

    `weights` are those of folders; a single one is opened as a dataset, not as a mixture. `text`
    has the arguments of `TextSpec`.
    """
    # Names of `datapipe` are imported when they are first used.
    from datapipe import TextSpec, make_loader
    from datapipe.plan.options import BLOCK

    say("imports")
    loader = make_loader(
        weights if len(weights) > 1 else next(iter(weights)),
        text=TextSpec(**text),
        pack=capacity,
        rank=rank,
        world_size=world,
        num_workers=0,
    )
    say("open")
    steps = iter(loader.plan.steps())
    walked = [next(steps)]
    say("first step")
    samples = len(walked[0].units.samples)
    for step in steps:
        walked.append(step)
        samples += len(step.units.samples)
        if samples >= blocks * BLOCK:
            break
    say("blocks", samples=samples, **balance(walked, capacity, world))
    say("end")


def balance(steps: Iterable[Step], capacity: int, ranks: int) -> dict[str, float]:
    """Return the fill of packs, and the imbalance of ranks in steps of one pack each.

    Imbalance is (max - mean) / max over the ranks of a step, averaged over steps. Steps that have
    too few packs for all ranks are left out of it.
    """
    from datapipe.plan.groups import text_cost

    tokens = packs = 0
    costs = []
    for step in steps:
        units, sizes = step.units, step.units.sizes
        assert sizes is not None
        tokens += int(sizes.tokens.sum())
        packs += len(units)
        if len(units) == ranks:
            costs.append((units.total(text_cost(sizes.tokens)), units.total(sizes.images)))
    found = np.array(costs, np.float64)  # [steps, 2, ranks]
    most = np.maximum(found.max(2), 1)
    text, images = ((most - found.mean(2)) / most).mean(0).tolist()
    return {"packs": packs, "fill": tokens / (packs * capacity), "text": text, "images": images}
