"""The learning rate as a function of the step, so that no state has to be saved for it."""

import math
from typing import Literal, get_args

Rule = Literal["linear", "sqrt"]


def rate_at(step: int, *, steps: int, warmup: int, peak: float, end: float = 0.1) -> float:
    """Learning rate of a step: a line up to `peak`, then half a cosine to `end * peak`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done)))


def scaled_rate(rate: float, *, rule: Rule, samples: float, base: int) -> float:
    """Return the learning rate for steps of another number of samples than `base`, which it suits.

    "linear" multiplies it by the ratio of the sizes, for SGD (arXiv 1706.02677). "sqrt" multiplies
    it by the root of the ratio, for Adam, whose steps do not grow with the gradient (arXiv
    2205.10287). Samples are over all ranks and accumulated batches.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"--scale-lr {rule!r}: give one of {', '.join(get_args(Rule))}")
    if base < 1:
        raise ValueError(
            f"--scale-lr {rule} needs the batch that --lr was found with; give --base-batch SAMPLES"
        )
    ratio = samples / base
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))
