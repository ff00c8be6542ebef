"""Costs of a stage by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np

from datapipe.profile.measure.usage import queued_seconds
from datapipe.report.table import Percentiles, percentiles, percentiles_ms

_UNDISTURBED = 90  # percent of the reads, the shortest
_LEAST_READS = 8
_LEAST_SPREAD = 0.05  # of their mean size

P = ParamSpec("P")
T = TypeVar("T")

STAGES = (
    *("read", "decode", "transform", "resize", "normalize"),
    *("tokenize", "collate", "transfer"),
)
"""Names of stages, in the order that a sample goes through them."""

COLD = "read, cold"
"""Reads past the page cache; no pipeline has them as a stage."""


@dataclass(kw_only=True)
class StageCost:
    """Cost of a stage by itself, on one thread, summed up over calls of `time`."""

    samples: int = 0  # measured
    cpu: float = 0.0  # CPU seconds of all samples
    # bytes_in, bytes_out: of all samples
    bytes_in: int = 0
    bytes_out: int = 0
    # wall seconds of each sample, or of each batch if `whole_batches`
    times: list[float] = field(default_factory=list)
    queued: float = 0.0  # seconds of `times` that the stage waited for a processor
    whole_batches: bool = False  # whether the stage handles all samples of a batch at once

    @property
    def seconds(self) -> float:
        """Seconds of all samples, without waiting for a processor."""
        return max(sum(self.times) - self.queued, min(self.cpu, sum(self.times)))

    @property
    def per_sample(self) -> float:
        """Seconds of a sample."""
        return self.seconds / max(self.samples, 1)

    @property
    def cpu_per_sample(self) -> float:
        """CPU seconds of a sample."""
        return self.cpu / max(self.samples, 1)

    @property
    def rate(self) -> float:
        """Samples per second and core; of a stage that uses several cores, of each of them."""
        return self.samples / max(self.seconds, self.cpu, 1e-9)

    @property
    def percentiles(self) -> Percentiles:
        """Percentiles of `times`, in seconds."""
        return percentiles(self.times)

    @contextmanager
    def row(self) -> Iterator[None]:
        """Measure around calls of `time` how long they wait for a processor."""
        # Once for several calls: it takes 20 µs, as much as reading a sample.
        before = queued_seconds()
        try:
            yield
        finally:
            self.queued += queued_seconds() - before

    def time(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` and note how long it took; a call that fails does not count."""
        # CPU time of the process: a tokenizer has threads of its own.
        cpu, began = time.process_time(), time.perf_counter()
        result = work(*args, **kwargs)
        self.times.append(time.perf_counter() - began)
        self.cpu += time.process_time() - cpu
        return result

    def count(self, samples: int, bytes_in: int, bytes_out: int) -> None:
        """Count the samples and bytes of that time."""
        self.samples += samples
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def add(self, other: StageCost) -> None:
        """Add the sums of another one."""
        self.times += other.times
        self.queued += other.queued
        self.cpu += other.cpu
        self.count(other.samples, other.bytes_in, other.bytes_out)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold; times in milliseconds."""
        samples = max(self.samples, 1)
        return {
            "samples": self.samples,
            "samples_per_second_per_core": self.rate,
            "ms_per_sample": 1e3 * self.per_sample,
            "cpu_ms_per_sample": 1e3 * self.cpu_per_sample,
            "bytes_in_per_sample": self.bytes_in / samples,
            "bytes_out_per_sample": self.bytes_out / samples,
            **{f"{name}_ms": ms for name, ms in percentiles_ms(self.percentiles).items()},
            "of": "batch" if self.whole_batches else "sample",
        }


def latency_share(reads: Sequence[tuple[int, float]]) -> float:
    """Estimate the share of the time of reads, 0 to 1, that does not depend on their sizes.

    By a straight line through (bytes, seconds), least squares. It is 1 for reads of one size.
    """
    sizes, times = np.array(reads, np.float64).T
    # A read that another process disturbed would turn the line.
    undisturbed = times <= np.percentile(times, _UNDISTURBED)
    sizes, times = sizes[undisturbed], times[undisturbed]
    spread = sizes.std()
    if len(sizes) < _LEAST_READS or spread < _LEAST_SPREAD * sizes.mean() or not times.sum():
        return 1.0
    slope = np.mean((sizes - sizes.mean()) * (times - times.mean())) / spread**2
    return float(np.clip(1 - slope * sizes.mean() / times.mean(), 0.0, 1.0))
