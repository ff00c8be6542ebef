"""The learning rate as a function of the step, so that no state has to be saved for it."""

from __future__ import annotations

import math


def rate_at(step: int, *, steps: int, warmup: int, peak: float, end: float = 0.1) -> float:
    """Learning rate of a step: a line up to `peak`, then half a cosine down to `end * peak`.

    Args:
        step: from 0.
        steps: of the whole run; the rate stays at its end behind them.
        warmup: steps on the way up.
        peak: the highest rate.
        end: share of it that is left at last.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done)))
