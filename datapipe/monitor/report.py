"""Report of a monitored training loop as text and page, and the counters that it is made from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from datapipe.diagnosis.loader_figures import LoaderFigures
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.diagnosis.loop_figures import DatasetShare, LoopFigures, SampledSteps, Verdict
from datapipe.diagnosis.loop_rules import ENOUGH, judge
from datapipe.loader.metrics.meter import Meter, Reading, Stage
from datapipe.monitor.datasets import DatasetCounter
from datapipe.monitor.durations import Durations, Timing, TurnSums
from datapipe.monitor.gpu import DeviceTimes, GpuSampler, GpuUsage
from datapipe.monitor.loop_timer import Event, LoopClock
from datapipe.monitor.recorder import StepRecorder
from datapipe.progress import readable_size
from datapipe.report.charts import COLOURS, legend, plot, stacked
from datapipe.report.page import Page
from datapipe.report.table import Table, aligned, counted, plain, time_text
from datapipe.report.trace import TraceEvent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "wait": "waiting for batches",
    "transfer": "transfer",
    "step": "step",
    "rest": "rest of the loop",
}
"""Parts of a loop's time, as fields of a report and as readers see them."""


# Waiting has the colour that stands out.
_COLOURS = {"wait": COLOURS[1], "transfer": COLOURS[4], "step": COLOURS[0], "rest": COLOURS[7]}


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Step times by the GPU's own clock."""

    step: Timing  # each step, without transfers in it
    transfer: Timing  # each transfer
    idle: Timing  # of each turn, from the end of the turn before


@dataclass(frozen=True, kw_only=True)
class LoopReport:
    """Measurements of a training loop: shares of `seconds` from 0 to 1, and times in seconds."""

    turns: int  # of the loop that count; one a batch
    seconds: float  # of these turns
    # of waiting for batches, `monitor.transfer()`, `monitor.step()`, and the rest; together 1
    wait_share: float
    transfer_share: float
    step_share: float
    rest_share: float
    # each one, on the host
    wait: Timing
    transfer: Timing
    step: Timing
    # each wait for the first batch of a pass, which starts workers; in no other figure
    first: Timing
    # turns in no other figure, by reason: "first" of a pass, "warm-up", "recorded", "traced",
    # "disturbed" by an error or another loop
    left_out: Mapping[str, int]
    timeline: tuple[TurnSums, ...]  # the whole run
    verdict: Verdict
    device: OnDevice | None = None  # None without a GPU
    gpu: GpuUsage | None = None  # by NVML; None without a GPU
    sampled: SampledSteps | None = None  # recorded by torch's profiler; None before the first one
    datasets: tuple[DatasetShare, ...] = ()  # of a mixture, from all batches so far, on this rank
    # of a datapipe loader, by name, summed over its threads
    stages: Mapping[str, Stage] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
        return dict(plain(self))

    def __str__(self) -> str:
        lines = [str(self.verdict), ""]
        for _, table in tables(self):
            lines += [*aligned(table), ""]
        return "\n".join(lines + notes(self))


def notes(report: LoopReport) -> list[str]:
    """List what tables do not show, a line each."""
    left_out = ", ".join(f"{count} {why}" for why, count in report.left_out.items())
    steps = counted(report.turns, "step")
    lines = [f"{steps} in {report.seconds:,.1f} s; left out: {left_out or 'none'}"]
    if report.first.count:
        lines.append(f"first batch after {time_text(report.first.p50)}")
    if (gpu := report.gpu) is not None:
        lines.append(
            f"{gpu.name}: busy {gpu.utilization:.0%} of the time, {readable_size(gpu.memory)} of "
            f"{readable_size(gpu.total)} taken"
        )
    if report.turns and report.sampled is None:
        lines.append("no step was recorded: exchange and waits for the device are unknown")
    return lines


def parts(report: LoopReport) -> dict[str, float]:
    """Return the shares of `PARTS`, without those that the loop does not mark."""
    marked = {"transfer": report.transfer.count, "step": report.step.count}
    return {name: getattr(report, f"{name}_share") for name in PARTS if marked.get(name, True)}


def tables(report: LoopReport) -> list[tuple[str, Table]]:
    """List the tables that are not empty, with their headings."""
    found = [
        ("How long each takes", _time_table(report)),
        ("Datasets of the mixture", _dataset_table(report)),
    ]
    return [(heading, table) for heading, table in found if table[1]]


def _time_table(report: LoopReport) -> Table:
    timings = {PARTS[name]: getattr(report, name) for name in ("wait", "transfer", "step")}
    shares = {PARTS[name]: share for name, share in parts(report).items() if report.turns}
    sampled, device = report.sampled, report.device
    if sampled is not None and sampled.exchange + sampled.beside > 0:
        shares["exchange alone"] = sampled.exchange
        shares["exchange beside operators"] = sampled.beside
    if device is not None:
        timings["step on the GPU"] = device.step
        timings["transfer on the GPU"] = device.transfer
        timings["GPU idle in a turn"] = device.idle
    rows = []
    for name in dict.fromkeys([*shares, *timings]):
        timing = timings.get(name, Timing())
        if name in shares or timing.count:
            times = (timing.p50, timing.p90, timing.p99) if timing.count else ()
            share = f"{shares[name]:.1%}" if name in shares else ""
            rows.append([name, share, *map(time_text, times), *[""] * (3 - len(times))])
    return ["", "share", "P50", "P90", "P99"], rows


def _dataset_table(report: LoopReport) -> Table:
    rows = []
    for each in sorted(report.datasets, key=lambda each: -each.planned):
        counts = (f"{each.samples:,}", f"{each.tokens:,}")
        rows.append([each.name, *counts, f"{each.share:.1%}", f"{each.planned:.1%}"])
    return ["dataset", "samples", "tokens", "share of samples", "in the plan"], rows


def save_page(report: LoopReport, path: str | os.PathLike[str]) -> None:
    """Write the page, without parts that were not measured."""
    page = Page("Training loop", " · ".join(notes(report)))
    page.verdict(report.verdict.sentence, report.verdict.level)
    for number, action in enumerate(report.verdict.actions, start=1):
        page.text(f"{number}. {action}")
    if report.turns:
        shares, colours = {}, {}
        for name, share in parts(report).items():
            label = f"{PARTS[name]} {share:.1%}"
            shares[label], colours[label] = share, _COLOURS[name]
        page.figure("Where the time goes", stacked([("", shares)], colours))
    for heading, table in tables(report):
        page.table(heading, *table)
    if report.turns:
        page.figure("Time of a step, from the first step to the last", _timeline(report))
    if report.stages:
        page.figure("Time of the loader's stages, on a processor and waiting", _stages(report))
    page.save(path)


def _timeline(report: LoopReport) -> Figure:
    stretches = report.timeline
    edges = [part.first for part in stretches]
    edges.append(stretches[-1].first + stretches[-1].turns)
    figure, axes = plot()
    below = [0.0] * len(stretches)
    # The step, which should be the largest part, is near the bottom.
    for name in ("rest", "step", "transfer", "wait"):
        heights = [1e3 * getattr(part, name) / part.turns for part in stretches]
        if any(heights):
            tops = [low + height for low, height in zip(below, heights, strict=True)]
            axes.stairs(tops, edges, baseline=below, fill=True, color=_COLOURS[name])
            below = tops
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None), xlabel="step", ylabel="ms a step")
    legend(figure, {PARTS[name]: _COLOURS[name] for name in parts(report)})
    return figure


def _stages(report: LoopReport) -> Figure:
    rows = []
    for name, stage in sorted(report.stages.items(), key=lambda stage: -stage[1].seconds):
        busy = min(stage.cpu, stage.seconds)
        rows.append((name, {"on a processor": busy, "waiting": stage.seconds - busy}))
    colours = {"on a processor": COLOURS[0], "waiting": COLOURS[1]}
    return stacked(rows, colours, "seconds, all threads together")


class LoopLoader:
    """Figures of the loop's loader: the meter of a datapipe loader, hints on others."""

    def __init__(self) -> None:
        self.hints: tuple[str, ...] = ()
        self.processes = False  # its workers are processes
        self._meter: Meter | None = None
        self._ours: Meter | None = None  # the meter, if the monitor has started it
        self._before: Reading | None = None  # at the end of the warm-up

    def begin(self, loader: Any, *, meter: bool, events: bool, ranges: bool) -> None:
        """Find or start the meter of a loader before its pass."""
        if not hasattr(loader, "start_metering"):
            self.hints = _hints(getattr(loader, "num_workers", None))
            return
        self.hints = ()
        self.processes = loader.options.in_processes
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
        return () if self._meter is None else self._meter.events


def _hints(workers: Any) -> tuple[str, ...]:
    """Suggest actions for a loader without a meter, such as torch's, by its number of workers."""
    tune = "find how many workers it takes: `datapipe.tune_workers(make)`"
    if workers == 0:
        return ("prepare batches in the background: `num_workers` of at least 1", tune)
    if isinstance(workers, int):
        return (tune, "pack the data once, and let `datapipe.make_loader` feed the loop")
    return ()


class Counters:
    def __init__(self) -> None:
        self.loop = LoopClock()
        self.recorder = StepRecorder()
        self.loader = LoopLoader()
        self.datasets = DatasetCounter()
        # Of the GPU, from the end of the warm-up on; None without one.
        self.device: DeviceTimes | None = None
        self.sampler: GpuSampler | None = None

    def replay(self, events: Iterable[Event]) -> None:
        """Add up events of the loop, and what has come from the device since."""
        self.loop.replay(events)
        if self.device is not None:
            self.device.read()
        self.datasets.read()

    def figures(self, *, thoroughly: bool) -> LoopFigures:
        """Compute the figures of the verdict, see `StepRecorder.figures`."""
        loop, device, reading = self.loop, self.device, self.loader.reading()
        gpu, limit = None if self.sampler is None else self.sampler.usage, None
        if reading is not None:
            processes = self.loader.processes
            limit = find_limit(LoaderFigures(reading=reading, in_loop=True, processes=processes))
        return LoopFigures(
            turns=loop.turns,
            left_out=loop.left_out,
            **loop.shares(loop.seldom),
            idle=None if device is None else self._of_turn(device, device.idle),
            device_transfer=None if device is None else self._of_turn(device, device.transfers),
            utilization=None if gpu is None else gpu.utilization,
            recorded=self.recorder.figures(thoroughly=thoroughly),
            marked=loop.steps.count > 0,
            limit=limit,
            hints=self.loader.hints,
            datasets=self.datasets.figures(),
        )

    def report(self) -> LoopReport:
        loop, device, reading = self.loop, None, self.loader.reading()
        figures = self.figures(thoroughly=True)
        if (times := self.device) is not None:
            step, transfer, idle = (t.timing() for t in (times.steps, times.transfers, times.idle))
            device = OnDevice(step=step, transfer=transfer, idle=idle)
        return LoopReport(
            turns=loop.turns,
            seconds=loop.total / 1e9,
            **{f"{name}_share": share for name, share in loop.shares().items()},
            wait=loop.waits.timing(),
            transfer=loop.transfers.timing(),
            step=loop.steps.timing(),
            first=loop.firsts.timing(),
            left_out=dict(loop.left_out),
            timeline=loop.timeline.stretches(),
            verdict=judge(figures),
            device=device,
            gpu=None if self.sampler is None else self.sampler.usage,
            sampled=figures.recorded if figures.recorded.steps else None,
            datasets=figures.datasets,
            stages={} if reading is None else dict(reading.all_stages),
        )

    def _of_turn(self, device: DeviceTimes, times: Durations) -> float | None:
        """Return a device's share of the loop's time; some turns may not have been read yet."""
        loop, read = self.loop, device.steps.count
        if not loop.steps.count:
            return 0.0
        if read < ENOUGH:
            return None
        whole = times.total / read * loop.steps.count
        return min(1.0, whole / max(loop.total - loop.seldom, 1))
