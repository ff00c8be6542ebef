"""Report of a monitored training loop, and the counters that it is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from datapipe.diagnosis.loader_figures import LoaderFigures
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.diagnosis.loop_figures import Blocked, DatasetShare, LoopFigures, Verdict
from datapipe.diagnosis.loop_rules import ENOUGH, judge
from datapipe.loader.metrics.meter import Meter, Reading, Stage
from datapipe.monitor.datasets import DatasetCounter
from datapipe.monitor.device_time import DeviceTimes
from datapipe.monitor.durations import Bucket, Durations, Stretch, Timing
from datapipe.monitor.gpu import GpuSampler, GpuUsage
from datapipe.monitor.loop_timer import LoopClock
from datapipe.monitor.recorder import SampledSteps, StepRecorder
from datapipe.monitor.waits import WaitProbe, WaitShares
from datapipe.progress import readable_size
from datapipe.report.table import Table, aligned, time_text
from datapipe.report.trace import TraceEvent

_MOST_DATASETS = 20  # in the text of a report


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Step times by the GPU's own clock."""

    step: Timing  # each step, without transfers in it
    transfer: Timing  # each transfer
    idle: Timing  # of each turn, from the end of the turn before
    turns: int  # that these are of


@dataclass(frozen=True, kw_only=True)
class LoopReport:
    """Measurements of a training loop. Shares are of `seconds`, 0 to 1; times are in seconds.

    Attributes:
        turns: of the loop that count; one a batch.
        seconds: of these turns.
        wait_share, transfer_share, step_share, rest_share: of waiting for batches, of
            `monitor.transfer()`, of `monitor.step()`, and of the rest of the loop; together 1.
        wait, transfer, step: each wait, transfer and step, on the host.
        first: each wait for the first batch of a pass over the loader, which starts workers; in no
            other figure.
        left_out: how many turns are in no other figure, and why: "first" of a pass, "warm-up",
            "recorded", "probed" for calls that wait, "traced", "disturbed" by an error or another
            loop.
        warm_up: seconds of the turns of the warm-up.
        device: by the GPU's clock; None without a GPU.
        gpu: by NVML; None without a GPU.
        blocked: time in calls that wait for the device, in the turns probed.
        lines: lines of the loop that made these calls.
        stages: of a datapipe loader, by name, summed over its threads.
        timeline: the whole run in stretches.
        step_times: histogram of the steps.
        verdict: on the limit of the loop.
        sampled: exchange with other ranks, waits for the GPU and the roofline, from steps that
            torch's profiler recorded; None before the first one.
        datasets: of a mixture, from all batches so far whose `meta` has "dataset", on this rank.
    """

    turns: int
    seconds: float
    wait_share: float
    transfer_share: float
    step_share: float
    rest_share: float
    wait: Timing
    transfer: Timing
    step: Timing
    first: Timing
    left_out: Mapping[str, int]
    warm_up: float
    blocked: WaitShares
    lines: tuple[Blocked, ...]
    timeline: tuple[Stretch, ...]
    step_times: tuple[Bucket, ...]
    verdict: Verdict
    device: OnDevice | None = None
    gpu: GpuUsage | None = None
    sampled: SampledSteps | None = None
    datasets: tuple[DatasetShare, ...] = ()
    stages: Mapping[str, Stage] = field(default_factory=lambda: MappingProxyType({}))

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
        # `asdict` cannot copy a mapping proxy.
        return asdict(replace(self, left_out={}, stages={})) | {
            "left_out": dict(self.left_out),
            "timeline": [stretch._asdict() for stretch in self.timeline],
            "step_times": [bucket._asdict() for bucket in self.step_times],
            "stages": {name: asdict(stage) for name, stage in self.stages.items()},
        }

    def __str__(self) -> str:
        lines = [str(self.verdict), ""]
        if self.turns:
            header, rows = time_table(self)
            lines += aligned((header[:-1], [row[:-1] for row in rows]))
        if self.datasets:
            header, rows = dataset_table(self)
            lines += ["", *aligned((header, rows[:_MOST_DATASETS])), ""]
        left_out = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
        left_out = f"left out: {left_out}" if left_out else "none left out"
        lines += [f"{self.turns:,} steps in {self.seconds:,.1f} s; {left_out}"]
        if self.first.count:
            first = f"first batch after {time_text(self.first.p50)}"
            if self.first.count > 1:
                most = time_text(self.first.longest)
                first += f" (of {self.first.count} passes, at most {most})"
            lines.append(first)
        if self.gpu is not None:
            lines.append(gpu_text(self.gpu))
        if self.turns and self.sampled is None and not self.blocked.turns:
            lines.append("no step was recorded: exchange and waits for the device are not known")
        for line in self.lines[:5]:
            each = time_text(line.seconds / line.count)
            lines.append(f"{line.call} at {line.where}: {line.count} times, {each} each")
        return "\n".join(lines)


def parts(report: LoopReport) -> list[tuple[str, float, Timing | None]]:
    """List the parts of a loop's time: name, share and durations."""
    every: list[tuple[str, float, Timing | None]] = [
        ("waiting for batches", report.wait_share, report.wait),
        ("transfer", report.transfer_share, report.transfer),
        ("step", report.step_share, report.step),
        ("rest of the loop", report.rest_share, None),
    ]
    return [part for part in every if part[2] is None or part[2].count]


def time_table(report: LoopReport) -> Table:
    """List the shares and percentiles of a turn's parts."""
    rows = [_row(name, f"{share:.1%}", timing) for name, share, timing in parts(report)]
    if report.sampled is not None and report.sampled.exchange + report.sampled.beside > 0:
        rows += [
            _row("exchange alone", f"{report.sampled.exchange:.1%}", None),
            _row("exchange beside operators", f"{report.sampled.beside:.1%}", None),
        ]
    if report.device is not None:
        rows += [
            _row("step on the GPU", "", report.device.step),
            _row("transfer on the GPU", "", report.device.transfer),
            _row("GPU idle in a turn", "", report.device.idle),
        ]
    return ["", "share", "P50", "P90", "P99", "longest"], rows


def dataset_table(report: LoopReport) -> Table:
    """List the datasets of a mixture, those with the largest shares in the plan first."""
    rows = []
    for each in sorted(report.datasets, key=lambda each: -each.planned):
        counts = (f"{each.samples:,}", f"{each.tokens:,}")
        rows.append([each.name, *counts, f"{each.share:.1%}", f"{each.planned:.1%}"])
    return ["dataset", "samples", "tokens", "share of samples", "in the plan"], rows


def _row(name: str, share: str, timing: Timing | None) -> list[str]:
    if timing is None or not timing.count:
        return [name, share, "", "", "", ""]
    return [name, share, *map(time_text, (timing.p50, timing.p90, timing.p99, timing.longest))]


def gpu_text(gpu: GpuUsage) -> str:
    """Format the usage of a GPU."""
    return (
        f"{gpu.name}: busy {gpu.utilization:.0%} of the time, {readable_size(gpu.memory)} of "
        f"{readable_size(gpu.total)} taken"
    )


class LoopLoader:
    """Figures of the loop's loader: the meter of a datapipe loader, hints on others."""

    def __init__(self) -> None:
        self.hints: tuple[str, ...] = ()
        self._meter: Meter | None = None
        self._ours: Meter | None = None  # the meter, if the monitor has started it
        self._before: Reading | None = None  # at the end of the warm-up

    def begin(self, loader: Any, *, meter: bool, events: bool, ranges: bool) -> None:
        """Find or start the meter of a loader before its pass."""
        if not hasattr(loader, "start_metering"):
            self.hints = _hints(loader)
            return
        self.hints = ()
        found: Meter | None = loader.meter
        if meter and (found is None or (found is self._ours and found.options.events != events)):
            found = self._ours = loader.start_metering(events=events, ranges=ranges)
        if found is not self._meter:
            self._meter, self._before = found, None

    def settle(self) -> None:
        """Leave out all readings so far: the warm-up is over."""
        if self._meter is not None:
            self._before = self._meter.reading()

    def reading(self) -> Reading | None:
        """Return the meter's reading since the warm-up; None without a meter."""
        if self._meter is None:
            return None
        reading = self._meter.reading()
        return reading if self._before is None else reading.since(self._before)

    def events(self) -> Iterable[TraceEvent]:
        """Return the events of the loader's threads."""
        return () if self._meter is None else self._meter.events


def _hints(loader: Any) -> tuple[str, ...]:
    """Suggest actions for a loader without a meter, such as torch's."""
    workers = getattr(loader, "num_workers", None)
    tune = "find how many workers it takes: `datapipe.tune_workers(make)`"
    if workers == 0:
        return ("prepare batches beside the training: `num_workers` of at least 1", tune)
    if isinstance(workers, int):
        return (tune, "pack the data once, and let `datapipe.make_loader` feed the loop")
    return ()


@dataclass(frozen=True)
class Counted:
    """Counters of a monitor."""

    loop: LoopClock
    recorder: StepRecorder
    probe: WaitProbe
    loader: LoopLoader
    device: DeviceTimes | None
    sampler: GpuSampler | None
    datasets: DatasetCounter

    def figures(self, sampled: SampledSteps | None) -> LoopFigures:
        """Compute the figures of the verdict."""
        device, probed, reading = self.device, self.probe.shares(), self.loader.reading()
        usage = None if self.sampler is None else self.sampler.usage()
        values: dict[str, Any] = dict(self._shares(self.loop.seldom))
        if sampled is not None:
            values |= {
                "busy": sampled.busy,
                "exchange": sampled.exchange,
                "beside": sampled.beside,
                "operators": sampled.operators,
                "ranks": sampled.ranks,
                "roofline": sampled.roofline,
                "waiter": sampled.waiter,
                # The CPU computes at once, so nothing waits for it.
                "synchronisation": None if sampled.busy is None else sampled.synchronisation,
            }
        if usage is not None:
            values["busy"] = usage.utilization  # of all steps, at their own speed
        if probed.turns:
            values["synchronisation"] = probed.synchronisation
        if device is not None:
            values["idle"] = self._of_turn(device.idle)
            values["device_transfer"] = self._of_turn(device.transfers)
        if reading is not None:
            values["limit"] = find_limit(LoaderFigures.of(reading, asked=reading.waited))
        return LoopFigures(
            turns=self.loop.turns,
            **values,
            synchronisation_outside=probed.outside,
            lines=self.probe.lines(),
            marked=self.loop.steps.count > 0,
            hints=self.loader.hints,
            datasets=self.datasets.figures(),
        )

    def report(self) -> LoopReport:
        """Make the report."""
        loop, device, reading = self.loop, self.device, self.loader.reading()
        sampled = self.recorder.figures(thoroughly=True)
        figures = self.figures(sampled)
        on_device = None
        if device is not None:
            on_device = OnDevice(
                step=device.steps.timing(),
                transfer=device.transfers.timing(),
                idle=device.idle.timing(),
                turns=device.turns,
            )
        return LoopReport(
            turns=loop.turns,
            seconds=loop.total / 1e9,
            **{f"{name}_share": share for name, share in self._shares().items()},
            wait=loop.waits.timing(),
            transfer=loop.transfers.timing(),
            step=loop.steps.timing(),
            first=loop.firsts.timing(),
            left_out=MappingProxyType(dict(loop.left_out)),
            warm_up=loop.warm_up / 1e9,
            blocked=self.probe.shares(),
            lines=figures.lines,
            timeline=loop.timeline.stretches(),
            step_times=loop.steps.buckets(),
            verdict=judge(figures),
            sampled=sampled,
            datasets=figures.datasets,
            device=on_device,
            gpu=None if self.sampler is None else self.sampler.usage(),
            stages=MappingProxyType({} if reading is None else reading.all_stages),
        )

    def _shares(self, seldom: int = 0) -> dict[str, float]:
        """Return the shares of the parts, without so many ns of rare work outside of the steps."""
        loop, total = self.loop, max(self.loop.total - seldom, 1)
        parts = {"wait": loop.waits.total, "transfer": loop.transfers.total}
        parts |= {"step": loop.steps.total, "rest": loop.rest - seldom}
        return {name: part / total for name, part in parts.items()}

    def _of_turn(self, times: Durations) -> float | None:
        """Return a device's share of the loop's time; some turns may not have been read yet."""
        device, loop = self.device, self.loop
        assert device is not None
        read = device.steps.count
        if not loop.steps.count:
            return 0.0
        if read < ENOUGH:
            return None
        whole = times.total / read * loop.steps.count
        return min(1.0, whole / max(loop.total - loop.seldom, 1))
