"""Figures of a run, and the moments at which it waits for the device to know them."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

import datapipe
from examples.vlm.data.batches import Batch, lengths_of
from examples.vlm.evaluate import Evaluation
from examples.vlm.measure.by_dataset import DatasetFigures, DatasetSums, dataset_table
from examples.vlm.measure.flops import Meter, Peak
from examples.vlm.measure.memory import Phases
from examples.vlm.measure.profiling import Stages, verdict
from examples.vlm.parallel.ranks import Ranks
from examples.vlm.techniques import Compiled


class RankFigures(NamedTuple):
    """Figures of one rank at a line of the log; None where they are not known."""

    rank: int
    loss: float | None  # in nats a label, of its share of the last step, before the exchange
    norm: float | None  # of the gradients of that share
    wait_share: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Figures of a run after its warm-up; counts and rates are over all ranks."""

    steps: int  # all that were made
    losses: list[float]  # of each of them, in nats a label, warm-up included
    measured: int  # steps that the figures describe
    seconds: float  # that these took
    samples_per_s: float
    tokens_per_s: float  # without padding
    fill: float  # share of tokens that are not padding
    step_p50: float | None  # seconds of a step, on the GPU's clock if there is one
    step_p99: float | None
    wait_share: float | None  # of the time, waiting for batches
    gpu_busy: float | None  # share of the time in which the GPU was at work
    flops_per_s: float  # of the model's forward and backward passes, see `flops`
    mfu: float | None  # share of the peak of all devices
    hfu: float | None  # the same, with what was computed twice
    first_batch: float  # seconds until it came
    memory: dict[str, int]  # bytes by use
    verdict: str  # sentence that names what held the loop back
    compiled: Compiled  # work of `torch.compile`, that of the warm-up included
    evaluations: list[Evaluation]  # over the held-out dataset; their time is in no rate
    ranks: tuple[RankFigures, ...] = ()  # at the last line of the log, if there are several
    datasets: tuple[DatasetFigures, ...] = ()  # of a mixture, over all steps, warm-up included
    # Bytes before and after each pass of a step, with --memory-phases.
    memory_phases: dict[str, dict[str, int]] = field(default_factory=dict)
    stages: dict[str, float] | None = None  # seconds a step of each, with --profile

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "compiled": self.compiled._asdict(),
            "evaluations": [one._asdict() for one in self.evaluations],
            "ranks": [rank._asdict() for rank in self.ranks],
            "datasets": [dataset._asdict() for dataset in self.datasets],
        }


def with_costs(report: Report, phases: Phases | None, seen: Stages | None) -> Report:
    """Return a report with memory by phase and time by stage, and a verdict on them."""
    if phases is not None:
        memory = report.memory
        more = max(0, phases.most - memory["peak"])
        memory = memory | {"peak": memory["peak"] + more, "rest": memory["rest"] + more}
        report = replace(report, memory=memory, memory_phases=phases.found())
    if seen is None:
        return report
    stages = {name: seconds / seen.steps for name, seconds in seen.by_stage.items()}
    said = f"{report.verdict} {verdict(seen)}".strip()
    return replace(report, stages=stages, verdict=said)


class Counts:
    """Sums over steps, kept on the device until they are read."""

    def __init__(
        self, ranks: Ranks, start: int, meter: Meter, peak: Peak, datasets: DatasetSums | None
    ) -> None:
        self._ranks, self._datasets, self._meter, self._peak = ranks, datasets, meter, peak
        self._start, self._step = start, 0  # figures begin after step `start`
        self._losses: list[float] = []
        self._kept: list[Tensor] = []
        self._tokens = torch.zeros((), dtype=torch.int64, device=ranks.device)
        self._slots = self._samples = 0
        self._begun = self._before = time.perf_counter()
        self._tokens_before, self._flops_before = 0, 0.0
        self._seconds: float | None = None
        self._compiled = Compiled.so_far()
        self._evaluations: list[Evaluation] = []
        self._by_rank: tuple[RankFigures, ...] = ()

    def add(self, step: int, loss: Tensor, group: list[Batch]) -> None:
        """Note a step, the `step`-th of the whole run."""
        self._step = step
        self._kept.append(loss)
        if step <= self._start:
            self._meter.zero()
            if step == self._start:
                self._wait()
                self._begun = self._before = time.perf_counter()
            return
        for batch in group:
            self._samples += len(batch["key"])
            self._slots += batch["input_ids"].numel()
            self._tokens += lengths_of(batch, len(batch["key"])).sum()

    def stop(self) -> None:
        """Take the time; later work does not count."""
        if self._seconds is None:
            self._wait()
            self._seconds = time.perf_counter() - self._begun

    def evaluate(self, evaluate: Callable[[], Evaluation]) -> None:
        """Evaluate, and leave the time that it takes out of all rates."""
        start = time.perf_counter()
        self._evaluations.append(evaluate())
        taken = time.perf_counter() - start
        self._begun += taken
        self._before += taken

    def line(self, monitor: datapipe.Monitor, own: Tensor) -> str:
        """Return a line of the log: figures of all ranks since the line before.

        But for the share of waiting, since the warm-up, and the norm, of the last step's gradients
        before clipping. `own` is `Run.own` of the last step.
        """
        losses = self._collect()
        tokens = int(self._ranks.total(self._tokens.clone()))
        flops, _ = self._flops()
        now = time.perf_counter()
        seconds = now - self._before
        made = (flops - self._flops_before) / seconds
        rate = (tokens - self._tokens_before) / seconds
        self._before, self._tokens_before, self._flops_before = now, tokens, flops
        seen = monitor.report()
        waiting = seen.wait_share if seen.turns else math.nan
        text = f"step {self._step:5d}  loss {fmean(losses):.3f}"
        if (norm := known(own[2].item())) is not None:
            text += f"  norm {norm:.3g}"
        if rate:  # not in the warm-up
            text += f"  {rate:8,.0f} tokens/s"
            if known(waiting) is not None:
                text += f"  waiting {waiting:.1%}"
            if (mfu := self._share(made)) is not None:
                text += f"  MFU {mfu:.1%}"
        if self._ranks.world_size > 1:
            here = torch.cat([own[:2].float(), own.new_tensor([waiting])])
            found = enumerate(self._ranks.gather(here))
            self._by_rank = tuple(
                RankFigures(rank, *map(known, each.tolist())) for rank, each in found
            )
            text += "\n" + spread(self._by_rank)
        if self._datasets is not None:
            text += "\n" + dataset_table(self._datasets.since_last())
        return text

    def report(self, monitor: datapipe.Monitor, memory: dict[str, int]) -> Report:
        self.stop()
        seconds = self._seconds or 0.0
        self._collect()
        seen = monitor.report()
        counts = torch.tensor([self._samples, self._slots], device=self._ranks.device)
        tokens = int(self._ranks.total(self._tokens))
        samples, slots = self._ranks.total(counts).tolist()
        flops, computed = self._flops()
        step = seen.device.step if seen.device is not None else seen.step
        return Report(
            steps=self._step,
            losses=self._losses,
            measured=max(0, self._step - self._start),
            seconds=seconds,
            samples_per_s=samples / seconds,
            tokens_per_s=tokens / seconds,
            fill=tokens / max(1, slots),
            step_p50=step.p50 if step.count else None,
            step_p99=step.p99 if step.count else None,
            wait_share=seen.wait_share if seen.turns else None,
            gpu_busy=busy(seen),
            flops_per_s=flops / seconds,
            mfu=self._share(flops / seconds),
            hfu=self._share(computed / seconds),
            first_batch=seen.first.p50,
            memory=memory,
            verdict=seen.verdict.sentence,
            compiled=Compiled.so_far().since(self._compiled),
            evaluations=self._evaluations,
            ranks=self._by_rank,
            datasets=() if self._datasets is None else self._datasets.of_run(),
        )

    def _flops(self) -> tuple[float, float]:
        """Return those of the model and those computed, over all ranks; waits for the device."""
        both = torch.tensor(self._meter.flops(), dtype=torch.float64)
        model, computed = self._ranks.total(both.to(self._ranks.device)).tolist()
        return model, computed

    def _share(self, flops_per_s: float) -> float | None:
        return self._peak.share(flops_per_s / self._ranks.world_size)

    def _collect(self) -> list[float]:
        """Losses since they were last asked for; waits for the device."""
        if not self._kept:
            return []
        here = torch.stack(self._kept).to(self._ranks.device)
        losses: list[float] = self._ranks.total(here).tolist()
        self._kept.clear()
        self._losses += losses
        return losses

    def _wait(self) -> None:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()


def spread(ranks: tuple[RankFigures, ...]) -> str:
    """Least and most of each figure, with the rank that has it."""
    texts = []
    for name, form in (("loss", ".3f"), ("norm", ".3g"), ("wait_share", ".1%")):
        found = sorted((v, r.rank) for r in ranks if (v := getattr(r, name)) is not None)
        if found:
            (low, least), (high, most) = found[0], found[-1]
            called = {"wait_share": "waiting"}.get(name, name)
            texts.append(f"{called} {low:{form}} (rank {least}) to {high:{form}} (rank {most})")
    return "    of ranks: " + ", ".join(texts)


def known(value: float) -> float | None:
    return None if math.isnan(value) else value


def busy(seen: Any) -> float | None:
    """Return the share of the time in which a GPU worked, from a monitor's report."""
    if seen.gpu is not None:
        return float(seen.gpu.utilization)
    if seen.device is None:
        return None
    worked = seen.device.step.total + seen.device.transfer.total
    return float(worked / max(worked + seen.device.idle.total, 1e-9))
