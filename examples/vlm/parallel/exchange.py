"""The share of a step that ranks take to exchange gradients, and the accumulation that follows."""

import time
from dataclasses import replace

import torch

from examples.vlm.data.batches import Batch, accumulation_for, bring
from examples.vlm.loop import Run, passes

TARGET = 0.1  # share of a step that the exchange may take
MOST = 32  # batches of a step: more are cheaper, but a larger step learns less per sample


def accumulate_automatically(run: Run) -> None:
    """Set the batches of a step so that the exchange takes at most `TARGET` of it.

    Loader and weights do not change; a hook with a state (PowerSGD) counts these passes.
    """
    if run.ranks.world_size == 1:
        run.ranks.say("--accumulate auto: one process exchanges nothing, so 1 batch a step")
        return
    state = run.loader.state_dict()
    batch = next(iter(run.loader))
    run.loader.load_state_dict(state)
    share = exchange_share(run, batch)
    wanted = accumulation_for(share, TARGET)
    run.techniques = replace(run.techniques, accumulate=min(wanted, MOST))
    run.ranks.say(
        f"--accumulate auto: the exchange takes {share:.0%} of a step of 1 batch, and at most "
        f"{TARGET:.0%} of one of {wanted}: {run.techniques.accumulate} batches a step"
        + (f", the most that auto takes (--accumulate {wanted} is yours)" * (wanted > MOST))
    )


def exchange_share(run: Run, batch: Batch, rounds: int = 5) -> float:
    """Measure the share of a step of one batch that the exchange adds; the same on every rank.

    Passes with and without the exchange take turns, and the fastest of each count, as other work on
    the machine only adds. Parts of the exchange that computing hides are not in the share.
    """
    time_pass(run, batch, True)  # compiles, and builds the buckets
    time_pass(run, batch, False)
    pairs = [(time_pass(run, batch, True), time_pass(run, batch, False)) for _ in range(rounds)]
    whole, alone = (min(times) for times in zip(*pairs, strict=True))
    times = torch.tensor([whole, min(alone, whole)], device=run.ranks.device)
    whole, alone = run.ranks.total(times).tolist()
    return float(1 - alone / whole)


def time_pass(run: Run, batch: Batch, exchanges: bool) -> float:
    """Time one forward and backward pass, and forget its gradients and random numbers."""
    device = run.ranks.device
    here = bring(batch, device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        run.ranks.total(torch.zeros(1, device=device)).item()  # all begin together
        start = time.perf_counter()
        list(passes(run, [here], 1.0, exchanges=exchanges))
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - start
    run.optimizer.zero_grad()
    return taken
