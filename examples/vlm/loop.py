"""The training loop: batches of datapipe in, a report out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import datapipe
from examples.vlm.accumulate import Batch, groups_of, labels_of
from examples.vlm.inputs import make_inputs
from examples.vlm.memory import memory_report
from examples.vlm.model import VLM
from examples.vlm.ranks import Ranks
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
    loader: datapipe.Loader
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
        """What a checkpoint holds."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "loader": self.loader,
        }


class Line(NamedTuple):
    """What is logged now and then.

    Attributes:
        step: the last one.
        loss: in nats a label, of each step since the line before.
        tokens_per_s: over all ranks since the line before, without padding.
        wait_share: time spent waiting for batches, of all since the warm-up.
    """

    step: int
    loss: list[float]
    tokens_per_s: float
    wait_share: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run measured, after its warm-up; counts and rates are over all ranks.

    Attributes:
        steps: all that were made, the warm-up included.
        losses: of each of them, in nats a label.
        measured: steps that the figures are of.
        seconds: they took.
        samples_per_s, tokens_per_s: without padding.
        fill: tokens that are no padding, of all that the model was given.
        step_p50, step_p99: seconds of a step, on the GPU's clock where there is one.
        wait_share: of the time, spent waiting for batches.
        first_batch: seconds until it came.
        memory: bytes by use.
        verdict: what held the loop back, in a sentence.
    """

    steps: int
    losses: list[float]
    measured: int
    seconds: float
    samples_per_s: float
    tokens_per_s: float
    fill: float
    step_p50: float
    step_p99: float
    wait_share: float
    first_batch: float
    memory: dict[str, int]
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def train(
    run: Run,
    *,
    steps: int,
    warm_up: int = 5,
    log: Callable[[Line], None] = lambda line: None,
    log_every: int = 10,
    after_step: Callable[[], bool] = lambda: True,
) -> Report:
    """Train until `steps` steps were made.

    Args:
        run: changed in place, its `step` too.
        steps: in all, those of an interrupted run included.
        warm_up: steps that no figure is of.
        log: is given a `Line` every `log_every` steps; that is when the device is waited for.
        log_every: steps.
        after_step: called after each; training ends where it returns False.

    Raises:
        ValueError: `steps` were made already, or an option is out of range.
    """
    if steps <= run.step:
        raise ValueError(f"steps={steps}: the run has made {run.step} already; give more")
    if warm_up < 0 or log_every < 1:
        raise ValueError(f"warm_up={warm_up}, log_every={log_every}: give 0 and 1, or more")
    techniques = run.techniques
    monitor = datapipe.Monitor(warmup=warm_up * techniques.accumulate)
    counts = Counts(run, warm_up=min(warm_up, steps - run.step - 1))
    groups = groups_of(
        monitor(run.loader),
        count=techniques.accumulate,
        labels=techniques.accumulate_tokens,
    )
    run.model.train()
    for group in islice(groups, steps - run.step):
        with monitor.step():
            loss = train_step(run, group)
            if not techniques.keep_losses:
                loss = torch.tensor(loss.item())
        run.step += 1
        counts.add(loss, group)
        if run.step % log_every == 0 or run.step == steps:
            line = counts.line(monitor)
            if run.ranks.first:
                log(line)
        if not after_step():
            break
    groups.close()
    return counts.report(monitor)


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


class Counts:
    """Adds up what steps did, on the device, until somebody wants to know."""

    def __init__(self, run: Run, warm_up: int) -> None:
        self._run = run
        self._start = run.step + warm_up  # the step from which on figures are taken
        self._losses: list[float] = []
        self._kept: list[Tensor] = []
        self._tokens = torch.zeros((), dtype=torch.int64, device=run.ranks.device)
        self._slots = self._samples = 0
        self._begun = self._before = time.perf_counter()
        self._tokens_before = 0

    def add(self, loss: Tensor, group: list[Batch]) -> None:
        """Note a step."""
        self._kept.append(loss)
        if self._run.step <= self._start:
            if self._run.step == self._start:
                self._wait()
                self._begun = self._before = time.perf_counter()
            return
        for batch in group:
            self._samples += len(batch["key"])
            self._slots += batch["input_ids"].numel()
            self._tokens += tokens_of(batch)

    def line(self, monitor: datapipe.Monitor) -> Line:
        """What happened since the last line."""
        losses = self._collect()
        tokens = int(self._run.ranks.total(self._tokens.clone()))
        now = time.perf_counter()
        rate = (tokens - self._tokens_before) / (now - self._before)
        self._before, self._tokens_before = now, tokens
        return Line(self._run.step, losses, rate, monitor.report().wait_share)

    def report(self, monitor: datapipe.Monitor) -> Report:
        """What happened in the whole run."""
        self._wait()
        seconds = time.perf_counter() - self._begun
        self._collect()
        run, seen = self._run, monitor.report()
        counts = torch.tensor([self._samples, self._slots], device=run.ranks.device)
        tokens = int(run.ranks.total(self._tokens))
        samples, slots = run.ranks.total(counts).tolist()
        step = seen.device.step if seen.device is not None else seen.step
        return Report(
            steps=run.step,
            losses=self._losses,
            measured=max(0, run.step - self._start),
            seconds=seconds,
            samples_per_s=samples / seconds,
            tokens_per_s=tokens / seconds,
            fill=tokens / max(1, slots),
            step_p50=step.p50,
            step_p99=step.p99,
            wait_share=seen.wait_share,
            first_batch=seen.first.p50,
            memory=memory_report(run.model, run.optimizer, run.ranks.device),
            verdict=seen.verdict.sentence,
        )

    def _collect(self) -> list[float]:
        """Losses since they were last asked for; waits for the device."""
        if not self._kept:
            return []
        here = torch.stack(self._kept).to(self._run.ranks.device)
        losses: list[float] = self._run.ranks.total(here).tolist()
        self._kept.clear()
        self._losses += losses
        return losses

    def _wait(self) -> None:
        if self._run.ranks.device.type == "cuda":
            torch.cuda.synchronize()


def _here(batch: Batch, device: torch.device) -> Batch:
    """A batch on the device, where the loader has not brought it there."""
    if batch["input_ids"].device.type == device.type:
        return batch
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def tokens_of(batch: Batch) -> Tensor:
    """Tokens of a batch that are no padding, on its device."""
    if "attention_mask" in batch:
        return torch.as_tensor(batch["attention_mask"]).sum()
    # Behind the samples there may be a segment of padding, and empty ones.
    return torch.as_tensor(batch["cu_seq_lens_q"])[len(batch["key"])]


def _reducing(run: Run, last: bool) -> AbstractContextManager[Any]:
    """Ranks exchange gradients with the last batch of a step alone."""
    if last or not isinstance(run.reduced, DistributedDataParallel):
        return nullcontext()
    context: AbstractContextManager[Any] = run.reduced.no_sync()
    return context
