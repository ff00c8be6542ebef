"""Costs of each stage of a loader by itself: its own batch builder, on one thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.decode.normalize import KERNEL
from datapipe.errors import PlanError
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.meter import Meter, Stage
from datapipe.loader.metrics.stage_clock import ClockOptions, Watch
from datapipe.profile.measure.samples import COLD, FirstReads, read_first, stored_samples
from datapipe.profile.measure.usage import queued_seconds
from datapipe.report.table import ratio
from datapipe.torch_threads import alone

STAGES = (
    *("read", COLD, "decode", "transform", "resize", "normalize"),
    *("tokenize", "collate", "transfer"),
)
"""Names of stages, in the order that a sample goes through them."""

_FIRST_READS = 0.3  # of the time


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """Cost of a stage by itself, on one thread."""

    samples: int  # measured
    seconds: float  # of all samples, without waiting for a processor
    cpu: float  # CPU seconds of all samples
    bytes: int  # that it read or made of them

    @property
    def rate(self) -> float:
        """Samples per second and core; of a stage that uses several cores, of each of them."""
        return ratio(self.samples, max(self.seconds, self.cpu))

    @property
    def wait(self) -> float:
        """Seconds that a sample waits for something that is no processor."""
        return max(0.0, self.seconds - self.cpu) / max(self.samples, 1)


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    stages: dict[str, StageCost]  # by name, in their order; only those that the loader has
    samples: int  # measured
    failed: int  # samples that could not be read or decoded; the loader would raise or skip them
    images: float  # per sample, on average
    batch_bytes: float  # of the tensors of a batch, per sample
    # first, steps, context: samples, their steps and the loader's context, for other measurements
    first: FirstReads = field(repr=False)
    steps: list[StepJob] = field(repr=False)
    context: BatchContext = field(repr=False)


def measure_alone(loader: Loader, *, samples: int = 256, seconds: float = 3.0) -> StageCosts:
    """Measure every stage of a loader by itself, on samples of its next run.

    It takes about so many samples, and no more after so many seconds. The interpreter should do
    nothing else meanwhile. Samples are dropped from the page cache to read them cold, if the system
    allows it.

    Raises:
        PlanError: the loader has no batches.
    """
    KERNEL.load()  # not in the middle of a measurement
    parts = loader.components()
    # A cache would keep what is measured here.
    skipping = replace(parts.context.options, on_error="skip")
    context = replace(parts.context, cache=None, options=skipping)
    steps: list[StepJob] = []
    for step in parts.steps():
        steps.append(step)
        if sum(len(step.samples) for step in steps) >= samples:
            break
    if not steps:
        raise PlanError("the loader has no batches to measure; make it with epochs=None")
    numbers = np.concatenate([step.samples for step in steps])[:samples]
    first = read_first(context, stored_samples(context, numbers), _FIRST_READS * seconds)
    run = _StageRun(context, parts.prefetcher)
    run.warm_up(steps[0])
    until = time.perf_counter() + (1 - _FIRST_READS) * seconds
    for step in steps:
        run.make_batch(step, until)
        if time.perf_counter() > until:
            break
    context.store.close()
    costs = run.costs()
    if first.cold:
        cpu = ratio(costs["read"].cpu, costs["read"].samples)  # as from the page cache
        costs[COLD] = StageCost(
            samples=first.cold,
            seconds=max(0.0, first.cold_seconds),
            cpu=first.cold * cpu,
            bytes=first.cold_bytes,
        )
    images = context.dataset.columns.sample_image
    return StageCosts(
        stages={name: costs[name] for name in STAGES if name in costs},
        samples=run.samples,
        failed=run.failed,
        images=float((images[numbers + 1] - images[numbers]).mean()),
        batch_bytes=ratio(run.batch_bytes, run.samples),
        first=first,
        steps=steps,
        context=context,
    )


def tensor_bytes(batch: dict[str, Any]) -> int:
    return sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))


class _StageRun:
    """Batches that are made one after the other in this thread, with their stages timed."""

    def __init__(self, context: BatchContext, prefetcher: DevicePrefetcher | None) -> None:
        self._context = context
        self._prefetcher = prefetcher
        self._meter = Meter(0, ClockOptions())
        self._watch = Watch(self._meter.clock("alone"))
        self._process = self._queued = 0.0  # seconds of the pieces: CPU, and waiting for it
        self.samples = self.failed = self.batch_bytes = self._device_bytes = 0

    def warm_up(self, step: StepJob) -> None:
        """Load what only the first samples would have to wait for: imports, kernels, files."""
        with alone():
            for _ in range(2):  # the second time in the memory of the first
                BatchBuilder(self._context, step).run(0, Watch())

    def make_batch(self, step: StepJob, until: float) -> None:
        """Make a batch; what is not done by `until` stays empty."""
        timed, context, done = self._meter.caller.timed, self._context, 0
        builder = timed("collate", BatchBuilder)(context, step)
        process, queued = time.process_time(), queued_seconds()
        with alone():  # as in a worker
            for piece in range(builder.pieces):
                # DALI decodes with the last piece.
                if done and time.perf_counter() > until and library_stage(context) != "decode":
                    break
                builder.run(piece, self._watch)
                done += 1
        self._watch.idle()
        self._process += time.process_time() - process
        self._queued += queued_seconds() - queued
        batch = timed("collate", builder.result)()
        self.samples += round(len(step.samples) * done / builder.pieces)
        self.failed += len(builder.errors)
        self.batch_bytes += round(tensor_bytes(batch) * done / builder.pieces)
        if self._prefetcher is not None:
            received = timed("transfer", _transfer)(self._prefetcher, batch, builder.blank)
            self._device_bytes += tensor_bytes(received)

    def costs(self) -> dict[str, StageCost]:
        reading, helped = self._meter.reading(), library_stage(self._context)
        stages = reading.all_stages
        if helped in stages:
            unseen = self._process - sum(stage.cpu for stage in reading.stages.values())
            stages[helped] += Stage(cpu=max(0.0, unseen))
        # The system does not say in which stage a thread waited for a processor: it does so after
        # each slice of time on one.
        queued = ratio(self._queued, sum(stage.cpu for stage in stages.values()))
        sizes = {"collate": self.batch_bytes, "transfer": self._device_bytes}
        return {
            name: StageCost(
                samples=self.samples,
                seconds=max(stage.seconds - queued * stage.cpu, min(stage.seconds, stage.cpu)),
                cpu=stage.cpu,
                bytes=sizes.get(name, stage.bytes),
            )
            for name, stage in stages.items()
        }


def library_stage(context: BatchContext) -> str | None:
    """Name the stage whose library has threads of its own; None if there is none."""
    if context.images is not None and context.images.decoder is not None:
        return "decode"
    return "tokenize" if context.tokens is not None else None


def _transfer(
    prefetcher: DevicePrefetcher, batch: dict[str, Any], blank: Tensor | None
) -> dict[str, Any]:
    received = prefetcher.receive(prefetcher.send(batch, blank=blank))
    if prefetcher.device.type == "cuda":
        torch.cuda.synchronize(prefetcher.device)
    return received
