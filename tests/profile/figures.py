"""Figures as a profile has them, without measuring anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from datapipe.diagnosis.loader_figures import Usage
from datapipe.loader.metrics.meter import Reading, Stage
from datapipe.profile.measure.alone import StageCost, StageCosts
from datapipe.profile.measure.roofline import Ceiling, Roofline
from datapipe.profile.measure.samples import FirstReads
from datapipe.profile.pipeline import PipelineRun

SECONDS = 10.0
SAMPLES = 10_000
CALLER = {"plan": (0.02, 0.02), "collate": (0.1, 0.1)}


def stages(parts: Mapping[str, tuple[float, float]]) -> dict[str, Stage]:
    """Stages of so many seconds, and of so many on a core."""
    return {
        name: Stage(seconds=seconds, cpu=cpu, count=SAMPLES, bytes=1000 * SAMPLES)
        for name, (seconds, cpu) in parts.items()
    }


def run(
    workers: Mapping[str, tuple[float, float]],
    caller: Mapping[str, tuple[float, float]] = CALLER,
    *,
    count: int = 2,
    idle: float = 0.0,
    waited: float = 9.5,
    cores: int = 2,
    samples: int = SAMPLES,
    step_time: float | None = None,
    **usage: Any,
) -> PipelineRun:
    """A loader that was watched for ten seconds."""
    used = sum(cpu for parts in (workers, caller) for _, cpu in parts.values())
    given: dict[str, Any] = {"cpu": used, "others": 0.0, "gil": 0.02, "memory": 1, "read": 0}
    return PipelineRun(
        reading=Reading(
            seconds=SECONDS,
            samples=samples,
            batches=samples // 32,
            workers=count,
            waited=waited,
            idle=idle,
            stages=stages(workers),
            caller=stages(caller),
            waits=(0.01, 0.02),
            ready=(0, 1, 2),
        ),
        usage=Usage(seconds=SECONDS, cores=cores, **(given | usage)),
        step_time=step_time,
        skipped=0,
    )


def alone(parts: Mapping[str, tuple[float, float]], images: Sequence[bytes] = ()) -> StageCosts:
    """Stages by themselves, each of so many milliseconds a sample, and of so many on a core."""
    context: Any = None
    return StageCosts(
        stages={
            name: StageCost(samples=100, seconds=seconds / 10, cpu=cpu / 10, bytes=100 * 1000)
            for name, (seconds, cpu) in parts.items()
        },
        samples=100,
        failed=0,
        images=1.0,
        batch_bytes=1000.0,
        first=FirstReads(stored=[], images=list(images)),
        steps=[],
        context=context,
    )


def roofline(cores: int = 2) -> Roofline:
    """The ceiling of a machine whose cores do as much beside others as alone."""
    rate = {"rate": 10_000.0, "bytes_per_sample": 1e6}
    ceiling = Ceiling(name="memory copy", threads=cores, **rate, note="")
    return Roofline(
        cores=cores, ceilings={"memory copy": ceiling}, scaling={1: 1.0, cores: float(cores)}
    )
