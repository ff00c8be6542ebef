"""The training loop: batches of datapipe in, a report out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import datapipe
from examples.vlm.accumulate import Batch, groups_of, labels_of
from examples.vlm.evaluate import Evaluation
from examples.vlm.inputs import make_inputs
from examples.vlm.measures import Counts, Line, Report
from examples.vlm.memory import memory_report
from examples.vlm.model import VLM
from examples.vlm.ranks import Ranks
from examples.vlm.resident import Resident
from examples.vlm.schedule import rate_at
from examples.vlm.techniques import Techniques


@dataclass(kw_only=True)
class Run:
    """All that a step needs, and how many were made.

    Attributes:
        model: that learns.
        loader: of batches with `text=`, `meta=("key", "num_items_in_batch")`, and no end.
        techniques: how steps are computed; `techniques.apply(model)` was called.
        optimizer, scaler: from `techniques`.
        ranks: which of how many processes this is.
        peak_rate, rate_steps, rate_warmup: of the learning rate, see `rate_at`.
        step: steps made so far.
    """

    model: VLM
    loader: datapipe.Loader | Resident
    techniques: Techniques
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ranks: Ranks
    peak_rate: float
    rate_steps: int
    rate_warmup: int
    step: int = 0
    reduced: nn.Module = field(init=False)
    """The model, with gradients averaged over the ranks."""

    def __post_init__(self) -> None:
        self.reduced = self.model
        if self.ranks.world_size > 1:
            self.reduced = DistributedDataParallel(self.model)

    def parts(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "loader": self.loader,
        }


def train(
    run: Run,
    *,
    steps: int,
    warm_up: int = 5,
    log: Callable[[Line], None] = lambda line: None,
    log_every: int = 10,
    after_step: Callable[[], bool] = lambda: True,
    evaluate: Callable[[], Evaluation] | None = None,
    evaluate_every: int = 0,
) -> Report:
    """Train until `steps` steps were made.

    Args:
        run: changed in place, its `step` too.
        steps: in all, those of an interrupted run included.
        warm_up: steps that no figure is of.
        log: is given a `Line` every `log_every` steps; that is when the device is waited for.
        log_every: steps.
        after_step: called after each; training ends where it returns False.
        evaluate: called after the last step, and on the way.
        evaluate_every: steps; 0 for the end alone.

    Raises:
        ValueError: `steps` were made already, or an option is out of range.
    """
    if steps <= run.step:
        raise ValueError(f"steps={steps}: the run has made {run.step} already; give more")
    if warm_up < 0 or log_every < 1:
        raise ValueError(f"warm_up={warm_up}, log_every={log_every}: give 0 and 1, or more")
    techniques = run.techniques
    monitor = datapipe.Monitor(warmup=warm_up * techniques.accumulate)
    start = run.step + min(warm_up, steps - run.step - 1)
    counts = Counts(run.ranks, start)
    groups = groups_of(
        monitor(run.loader),
        count=techniques.accumulate,
        labels=techniques.accumulate_tokens,
        samples=techniques.accumulate_samples,
        ranks=run.ranks.world_size,
    )
    run.model.train()
    for group in islice(groups, steps - run.step):
        with monitor.step():
            loss = train_step(run, group)
            if not techniques.keep_losses:
                loss = torch.tensor(loss.item())
        run.step += 1
        counts.add(run.step, loss, group)
        if run.step % log_every == 0 or run.step == steps:
            line = counts.line(monitor)
            if run.ranks.first:
                log(line)
        if run.step == steps:
            counts.stop()  # a checkpoint at the end is no part of any rate
        due = run.step == steps or (evaluate_every and run.step % evaluate_every == 0)
        if evaluate is not None and due:
            counts.evaluate(evaluate)
        if not after_step():
            break
    groups.close()
    memory = memory_report(run.model, run.optimizer, run.ranks.device)
    return counts.report(monitor, memory)


def train_step(run: Run, group: list[Batch]) -> Tensor:
    """Learn from some batches together; the loss in nats a label, over this rank's share of them.

    Gradients are those of the mean over all labels that the ranks have in these batches, whatever
    batches they are in.
    """
    techniques, ranks = run.techniques, run.ranks
    techniques.zero(run.optimizer)
    for parameters in run.optimizer.param_groups:
        parameters["lr"] = rate_at(
            run.step, steps=run.rate_steps, warmup=run.rate_warmup, peak=run.peak_rate
        )
    # DDP averages over the ranks what has to be summed.
    share = ranks.world_size / labels_of(group)
    total = torch.zeros((), device=ranks.device)
    for number, batch in enumerate(group, 1):
        # With CUDA graphs: the outputs of the batch before may be overwritten.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        inputs = make_inputs(_here(batch, ranks.device), run.model.config, run.model.kernel)
        with _reducing(run, number == len(group)):
            with techniques.autocast(ranks.device):
                losses = run.reduced(inputs)
            loss = losses.sum() * share
            run.scaler.scale(loss).backward()
        total += loss.detach()
    if techniques.clip:
        run.scaler.unscale_(run.optimizer)
        nn.utils.clip_grad_norm_(run.model.parameters(), techniques.clip)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    return total / ranks.world_size


def _here(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on the device, if the loader has not brought it there."""
    if batch["input_ids"].device.type == device.type:
        return batch
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def _reducing(run: Run, last: bool) -> AbstractContextManager[Any]:
    """Ranks exchange gradients with the last batch of a step alone."""
    if last or not isinstance(run.reduced, DistributedDataParallel):
        return nullcontext()
    context: AbstractContextManager[Any] = run.reduced.no_sync()
    return context
