"""The training loop: batches of datapipe in, a report out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import datapipe
from examples.vlm.data.batches import IGNORE, Batch, bring, groups_of, labels_of
from examples.vlm.data.resident import Resident
from examples.vlm.evaluate import Evaluation
from examples.vlm.measure.by_dataset import DatasetSums
from examples.vlm.measure.flops import Meter, Peak
from examples.vlm.measure.memory import memory_report
from examples.vlm.measure.report import Counts, Report
from examples.vlm.model.inputs import Inputs, make_inputs
from examples.vlm.model.vlm import VLM
from examples.vlm.parallel.connect import Exchange
from examples.vlm.parallel.mesh import clip_gradients, whole_loss
from examples.vlm.parallel.ranks import Ranks
from examples.vlm.techniques import Techniques, rate_at

DATA = "waiting for data"


@dataclass(kw_only=True)
class Run:
    """All that a step needs, and the number of steps made."""

    model: VLM
    # Of batches with `text=`, `meta=("key", "num_items_in_batch")`, and no end; of a mixture with
    # "dataset" and "valid" too.
    loader: datapipe.Loader | Resident
    techniques: Techniques  # of which `apply(model)` was called
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ranks: Ranks
    peak_rate: float  # of the learning rate, as the next two, see `rate_at`
    rate_steps: int
    rate_warmup: int
    exchange: Exchange  # of gradients between ranks; `connect` came before the optimizer
    # Called with a stage and its step, for the watch over ranks.
    mark: Callable[[str, int], None] = lambda stage, step: None
    # A step ends with the epoch, full or not. Then steps are the same on any number of ranks.
    epoch_ends_step: bool = False
    step: int = 0
    about: dict[str, Any] = field(default_factory=dict)  # is equal in a run that continues this one
    # Loss in nats a label of the last step on this rank, before the exchange, and norms of
    # gradients, its own and that of all ranks; NaN if not known.
    own: Tensor | None = None


def train(
    run: Run,
    *,
    steps: int,
    warm_up: int = 5,
    log_every: int = 10,
    after_step: Callable[[], bool] = lambda: True,
    peak_flops: float | None = None,
    evaluate: Callable[[], Evaluation] | None = None,
    evaluate_every: int = 0,
) -> Report:
    """Train until `steps` steps were made, those of an interrupted run included.

    Args:
        run: changed in place, its `step` too.
        warm_up: steps that are left out of all figures.
        log_every: steps from one line of the log to the next, when the loop waits for the device.
        after_step: called after each; training ends if it returns False.
        peak_flops: FLOPs a second of one device; None looks them up, or measures the CPU.
        evaluate: called after the last step, and every `evaluate_every` steps if not 0.
    """
    if steps <= run.step:
        raise ValueError(f"steps={steps}: the run has made {run.step} already; give more")
    if warm_up < 0 or log_every < 1:
        raise ValueError(f"warm_up={warm_up}, log_every={log_every}: give 0 and 1, or more")
    techniques = run.techniques
    warm_up = min(warm_up, steps - run.step - 1)  # at least one step is measured
    monitor = datapipe.Monitor(warmup=warm_up * techniques.accumulate)
    peak = Peak(run.ranks.device, techniques.dtype, tf32=techniques.tf32, given=peak_flops)
    pipeline = run.exchange.pipeline
    meter = Meter(run.model, None if pipeline is None else pipeline.formula)
    shares = getattr(run.loader.plan, "shares", dict)  # plans of one folder have none
    datasets = DatasetSums(shares, run.ranks) if len(shares()) > 1 else None
    counts = Counts(run.ranks, run.step + warm_up, meter, peak, datasets)
    groups = groups_of(
        monitor(run.loader),
        **techniques.group,
        ranks=run.loader.options.world_size,
        ends=epoch_ended(run.loader) if run.epoch_ends_step else lambda: False,
    )
    run.model.train()
    run.mark(DATA, run.step + 1)
    for group in islice(groups, steps - run.step):
        with monitor.step():
            loss = train_step(run, group, datasets)
            if not techniques.keep_losses:
                loss = torch.tensor(loss.item())
        run.step += 1
        counts.add(run.step, loss, group)
        if run.step % log_every == 0 or run.step == steps:
            run.mark("waiting for the device and gathering figures", run.step)
            assert run.own is not None
            run.ranks.say(counts.line(monitor, run.own))
        if run.step == steps:
            counts.stop()  # before a checkpoint at the end
        due = run.step == steps or (evaluate_every and run.step % evaluate_every == 0)
        if evaluate is not None and due:
            counts.evaluate(evaluate)
        if not after_step():
            break
        run.mark(DATA, run.step + 1)
    groups.close()
    meter.close()
    memory = memory_report(run.model, run.optimizer, run.ranks.device)
    return counts.report(monitor, memory)


def epoch_ended(loader: datapipe.Loader | Resident) -> Callable[[], bool]:
    """Return a function that returns whether an epoch has ended since it was last called."""
    before = loader.epoch

    def ended() -> bool:
        nonlocal before
        before, last = loader.epoch, before
        return before != last

    return ended


def train_step(run: Run, group: list[Batch], datasets: DatasetSums | None = None) -> Tensor:
    """Learn from some batches together; return the loss in nats a label, of this rank's share.

    Gradients are those of the mean over all labels that the ranks have in these batches. `datasets`
    gets the losses of the step.
    """
    techniques, ranks = run.techniques, run.ranks
    techniques.zero(run.optimizer)
    for parameters in run.optimizer.param_groups:
        parameters["lr"] = rate_at(
            run.step, steps=run.rate_steps, warmup=run.rate_warmup, peak=run.peak_rate
        )
    # The exchange averages over the ranks what has to be summed.
    labels, exchange, step = labels_of(group), run.exchange, run.step + 1
    share = ranks.shares / labels
    total = torch.zeros((), device=ranks.device)
    learnt = torch.zeros((), device=ranks.device)
    for batch, inputs, losses in passes(run, group, share):
        learnt += (inputs.targets != IGNORE).sum()
        if datasets is not None:
            datasets.add(batch, inputs.targets, losses)
        total = total + losses.sum() * share
    exchange.finish()
    total = whole_loss(total, ranks)
    own = exchange.norms.take()
    if own is not None:
        own = own / run.scaler.scale(torch.ones((), device=ranks.device))
    norm = None
    if techniques.clip:
        run.scaler.unscale_(run.optimizer)
        norm = clip_gradients(run.model, techniques.clip, ranks)
    run.mark("in the optimizer", step)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    unknown = total.new_full((), math.nan)
    norms = [unknown if each is None else each for each in (own, norm)]
    run.own = torch.stack([total * labels / ranks.shares / learnt, *norms])
    return total / ranks.shares


def passes(
    run: Run, group: list[Batch], share: float, *, exchanges: bool = True
) -> Iterator[tuple[Batch, Inputs, Tensor]]:
    """Run the forward and backward pass of each batch, with its losses times `share`.

    The last one of a group `exchanges` gradients. Yield the batch on the device, the inputs of the
    model, and the losses by token, without a graph.
    """
    exchange, device, step = run.exchange, run.ranks.device, run.step + 1
    if exchange.pipeline is not None:
        run.mark("in the passes of the pipeline", step)
        batches = [bring(batch, device) for batch in group]
        inputs = [make_inputs(batch, run.model.config, run.model.kernel) for batch in batches]
        losses = exchange.pipeline.learn(inputs, share)
        yield from zip(batches, inputs, losses, strict=True)
        return
    for number, batch in enumerate(group, 1):
        # CUDA graphs may overwrite the outputs of the batch before.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        run.mark("in the forward pass", step)
        here = bring(batch, device)
        one = make_inputs(here, run.model.config, run.model.kernel)
        with exchange.sending(exchanges and number == len(group)):
            with exchange.autocast(run.techniques, device):
                found = exchange.module(one)
            run.mark("in the backward pass and the exchange of gradients", step)
            run.scaler.scale(found.sum() * share).backward()
        yield here, one, found.detach()
