"""Rules that name the resource and the stage that hold a loader back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.loader.metrics.meter import Stage
from datapipe.report.page import Level
from datapipe.report.table import ratio

Resource = Literal[
    "step", "caller", "lock", "memory", "storage", "cpu", "wait", "prefetch", "unknown"
]

WAITING = 0.01
"""Share of its time that training waits at most while it is the limit itself."""
HIGH_WAIT = 0.1
"""Share of its time waiting from which on training is held back."""
BUSY = 0.9
"""Share of the time of cores, or of a thread, from which on they are exhausted."""
LOCKED = 0.4
"""Share of its time that a thread waits for the interpreter's lock, from which on the lock is the
limit. Under Python code that always runs it is 0.67 and more; under decoders that release the lock
it stays below 0.05."""
_GROWTH = 1.4  # CPU time of a sample with many workers over that with few: cores wait for memory
_SIBLINGS = 1.5  # times as much, where two CPUs are one core and take from each other
_AT_WORK = 0.7  # of the time of workers, or of the cores, from which on they count as computing
_CALLER = 0.8  # of the time, of the thread that takes batches; what is left is the hand-over
_CALLER_OF_WAIT = 0.5  # of the waiting, likewise
_IDLE = 0.5  # of the workers' time, from which on more of them would not help
_ONE_CORE = 1.3  # CPU seconds a second that code under the lock and what it calls take at most
_SCALES = 1.2  # times the work of one thread, below which threads hinder each other
_MOSTLY = 0.5  # of the workers' time
_LESS_BUSY = 0.5  # CPU seconds a second in a stage that waits, over those in the others
_READ_RATE = 1e6  # bytes/s from storage, below which an unknown wait is not one for it
_ROOM = 1.2  # times as many batches as training takes, from which on a loader is fast enough


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The resource that holds a loader back."""

    stage: str  # its name; "step" if it is the training step, "unknown" if no stage stands out
    resource: Resource  # exhausted there
    reason: str  # part of a sentence
    actions: tuple[str, ...] = ()  # the next things to do, most promising first
    level: Level = "warn"

    def __str__(self) -> str:
        name = "the training step" if self.stage == "step" else self.stage
        return self.reason if self.stage == "unknown" else f"{name}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to what JSON can hold."""
        return {"stage": self.stage, "resource": self.resource, "reason": self.reason}


def find_limit(seen: LoaderFigures, few: LoaderFigures | None = None) -> Limit:
    """Name what holds a loader back. A pure function: equal figures, equal verdict.

    The first rule that holds decides: training that rarely waits is the limit itself; then the
    thread that takes the batches; memory bandwidth, if the CPU time of a sample grows with the
    workers; the interpreter's lock; a stage that workers wait in without a core; the cores.

    Args:
        seen: with the workers to be explained.
        few: the same loader with fewer workers, ideally one.
    """
    usage = seen.usage
    found = _of_step(seen) or _of_caller(seen)
    if found is None and usage is None:
        found = _of_prefetch(seen) or _of_largest(seen)
    elif found is None and usage is not None:
        found = (
            _of_memory(seen, usage, few)
            or _of_lock(seen, usage)
            or _of_waiting(seen)
            or _of_cores(seen, usage)
            or _of_rest(seen, usage)
        )
    assert found is not None, "the last rule always holds"
    waits = found.resource in ("storage", "wait", "lock")
    found = replace(found, actions=found.actions or _actions(found.stage, waits, seen.workers))
    if seen.waited is None or found.stage == "step":
        return found
    if seen.room is not None and seen.room >= _ROOM:
        bursts = (
            "; on average the loader is fast enough for training, which still waits "
            f"{seen.waited:.0%} of its time: a larger prefetch_factor evens batches out"
        )
        found = replace(found, reason=found.reason + bursts)
    return replace(found, level="bad")


def _of_step(seen: LoaderFigures) -> Limit | None:
    waited, room = seen.waited, seen.room
    if waited is None:
        return None
    # Each hand-over takes a moment, however fast batches come.
    enough = waited <= HIGH_WAIT and room is not None and room * (1 - waited) >= _ROOM
    if waited > WAITING and not enough:
        return None
    reason = f"it waits {waited:.1%} of its time for batches"
    if room is not None:
        reason += f"; the loader alone makes {room:.1f} times as many"
    return Limit(stage="step", resource="step", reason=reason, level="good")


def _of_caller(seen: LoaderFigures) -> Limit | None:
    """Check whether the thread that takes the batches has no time left."""
    if not seen.workers:
        return None
    spent = _seconds(seen.caller)
    total = seen.seconds if seen.asked is None else seen.asked
    busy = ratio(sum(spent.values()), total)
    if total > 0 and busy >= (_CALLER if seen.asked is None else _CALLER_OF_WAIT):
        name, share = _largest(spent)
        idle = ratio(seen.idle, seen.workers * seen.seconds)
        reason = (
            f"the thread that takes the batches spends {share * busy:.0%} of "
            f"{'its time' if seen.asked is None else 'that'} in {_spoken(name)}, while workers "
            f"wait {min(idle, 1):.0%} of theirs"
        )
        return Limit(stage=name, resource="caller", reason=reason)
    if seen.caller_cpu is not None and seen.caller_cpu >= BUSY * seen.seconds:
        reason = "the thread that takes the batches is busy all the time"
        return Limit(stage="unknown", resource="caller", reason=reason)
    return None


def _of_memory(seen: LoaderFigures, usage: Usage, few: LoaderFigures | None) -> Limit | None:
    if few is None or few.cpu_per_sample <= 0:
        return None
    growth = seen.cpu_per_sample / few.cpu_per_sample
    # Workers that wait for something else spend what little they take on handing over.
    team = min(max(1, seen.workers), usage.cores)
    busy = usage.cpu >= _AT_WORK * team * usage.seconds
    locked = usage.gil is not None and usage.gil >= LOCKED and seen.workers > 0
    # Others share caches and memory too, and come and go.
    disturbed = seen.crowded or few.crowded or locked
    if disturbed or not busy or growth < _GROWTH * (_SIBLINGS if seen.siblings else 1):
        return None
    reason = f"a sample takes {growth:.1f} times the CPU time that it takes with fewer workers"
    return Limit(stage="unknown", resource="memory", reason=f"{reason}: the cores wait for memory")


def _of_lock(seen: LoaderFigures, usage: Usage) -> Limit | None:
    cpu = ratio(usage.cpu, usage.seconds)
    if seen.processes or seen.workers < 1 or usage.cores < 2 or usage.gil is None:
        return None
    hinders = seen.workers > 1 and seen.scaling is not None and seen.scaling < _SCALES
    if cpu > _ONE_CORE or (usage.gil < LOCKED and not hinders):
        return None
    name, share = _most_cpu(seen)
    reason = (
        f"Python code holds the interpreter's lock: a thread waits for it {usage.gil:.0%} of its "
        f"time, and all threads together use {cpu:.1f} of {usage.cores} cores"
    )
    if share:
        reason += f"; {share:.0%} of that goes into {name}"
    return Limit(stage=name, resource="lock", reason=reason)


def _of_waiting(seen: LoaderFigures) -> Limit | None:
    """Check whether workers wait in one stage for something that is no processor.

    Waiting for a processor shows in all stages alike, so this is a stage that uses far less of one.
    """
    stages = seen.worked
    if seen.threaded is not None or not stages:
        return None
    name, share = _largest(_seconds(stages))
    busy, rest = _busy_of(stages, name)
    if share < _MOSTLY or busy > _LESS_BUSY * rest:
        return None
    who = "workers wait" if seen.workers else "the loop's own thread waits"
    reason = f"{who} {share * (1 - busy):.0%} of "
    if name == "read":
        return Limit(stage=name, resource="storage", reason=f"{reason}their time for storage")
    reason += "the time there, without using a core"
    return Limit(stage=name, resource="wait", reason=reason)


def _of_cores(seen: LoaderFigures, usage: Usage) -> Limit | None:
    workers = max(1, seen.workers)
    used = ratio(usage.cpu, min(workers, usage.cores) * usage.seconds)
    if usage.busy >= BUSY:
        names = {1: "the one core is", 2: "both cores are"}
        reason = f"{names.get(usage.cores, f'all {usage.cores} cores are')} busy"
        if seen.crowded:
            reason += f", {usage.others / usage.seconds:.1f} of them with other processes"
    elif used >= BUSY:
        who = "each worker is" if seen.workers else "the caller's thread is"
        reason = f"{who} busy, and cores are left"
    else:
        return None
    name, share = _most_cpu(seen)
    if share:
        reason += f", {share:.0%} of the loader's CPU time goes into {name}"
    return Limit(stage=name, resource="cpu", reason=reason)


def _of_rest(seen: LoaderFigures, usage: Usage) -> Limit:
    """Conclude as far as possible where nothing is exhausted."""
    rate = ratio(usage.read or 0, usage.seconds)
    idle = usage.cpu < _MOSTLY * min(max(1, seen.workers), usage.cores) * usage.seconds
    if not seen.all_stages and idle and rate >= _READ_RATE:
        reason = f"cores are idle while {rate / 1e6:,.0f} MB/s come from storage"
        return Limit(stage="read", resource="storage", reason=reason)
    name, share = _largest(_seconds(seen.stages))
    reason = f"nothing is exhausted; workers spend {share:.0%} of their working time there"
    if name == "unknown":
        reason = f"cores are busy {usage.busy:.0%} of the time; the loader waits for something else"
    return Limit(stage=name, resource="unknown", reason=reason)


def _of_prefetch(seen: LoaderFigures) -> Limit | None:
    total = sum(_seconds(seen.stages).values())
    if not seen.workers or total <= 0 or seen.idle < _IDLE * (seen.idle + total):
        return None
    share = seen.idle / (seen.idle + total)
    return Limit(
        stage="prefetch",
        resource="prefetch",
        reason=f"yet the loader's workers wait for work {share:.0%} of their time",
        actions=("begin more batches ahead: a larger `prefetch_factor`",),
    )


def _of_largest(seen: LoaderFigures) -> Limit:
    """Name the stage that takes most of the time, by the loader's own clocks alone."""
    stages = seen.worked
    name, share = _largest(_seconds(stages))
    if name == "unknown":
        return Limit(stage=name, resource="unknown", reason="the loader has not said where")
    busy, rest = _busy_of(stages, name)
    who = "the loader's workers spend" if seen.workers else "the loader, without workers, spends"
    reason = f"{who} {share:.0%} of the time in {_spoken(name)}"
    blocked = busy < _LESS_BUSY * rest
    if blocked:
        reason += f", {1 - busy:.0%} of it without a processor"
    return Limit(stage=name, resource="wait" if blocked else "cpu", reason=reason)


def _most_cpu(seen: LoaderFigures) -> tuple[str, float]:
    return _largest({name: stage.cpu for name, stage in seen.all_stages.items()})


def _largest(parts: Mapping[str, float]) -> tuple[str, float]:
    """Return the largest part, and its share of all of them."""
    total = sum(parts.values())
    if total <= 0:
        return "unknown", 0.0
    name = max(parts, key=lambda part: parts[part])
    return name, parts[name] / total


def _busy_of(stages: Mapping[str, Stage], name: str) -> tuple[float, float]:
    """Return the CPU seconds a second of a stage, and those of the others."""
    others = [stage for other, stage in stages.items() if other != name]
    measured = sum(stage.cpu for stage in others) > 0
    return _busy([stages[name]]), _busy(others) if measured else 1.0


def _busy(stages: Sequence[Stage]) -> float:
    seconds = sum(stage.seconds for stage in stages)
    return min(1.0, ratio(sum(stage.cpu for stage in stages), seconds))


def _seconds(stages: Mapping[str, Stage]) -> dict[str, float]:
    return {name: stage.seconds for name, stage in stages.items()}


def _actions(stage: str, waits: bool, workers: int) -> tuple[str, ...]:
    found = _ACTIONS.get(stage, ())
    if not workers:
        return ("prepare batches beside the training: `num_workers` of at least 1", *found)
    if waits and stage == "read":
        # Waiting for storage needs no core.
        return ("wait for more reads at once: more `num_workers` than cores", *found)
    if waits and stage in ("transform", "tokenize"):
        return ("give every worker an interpreter of its own: `workers='processes'`", *found)
    return found


def _spoken(stage: str) -> str:
    return _SPOKEN.get(stage, stage)


_SPOKEN = {
    "read": "reading from storage",
    "decode": "decoding",
    "resize": "resizing",
    "normalize": "normalising",
    "transform": "your transform",
    "tokenize": "tokenizing",
    "collate": "collating batches",
    "transfer": "carrying batches to the device",
    "plan": "planning",
}

_SMALLER = "make the images smaller once: `datapipe pack ... --max-side`"
_ACTIONS: dict[str, tuple[str, ...]] = {
    "read": ("keep the shards on a local disk, or in memory", _SMALLER),
    "decode": (
        _SMALLER,
        "decode large JPEGs at a fraction of their size: `ImageSpec(scaled_decode=True)`",
        "decode on the GPU: `decoder='dali'`",
    ),
    "resize": (
        "let the device normalise: `make_loader(..., device='cuda')` carries images as uint8",
        _SMALLER,
    ),
    "transform": (
        "move what is the same for every epoch to before packing, and what is not to the device",
    ),
    "tokenize": ("give workers processes of their own: `workers='processes'`",),
    "collate": ("carry less in a batch: uint8 images, fewer fields in `meta`, smaller batches",),
    "transfer": (
        "carry images as uint8, a quarter of the bytes: `make_loader(..., device='cuda')` with "
        "the `ImageSpec` left to normalise on the device",
    ),
    "plan": ("keep the plan between runs: `cache=CacheSpec(plan=...)`",),
}
