"""Rules that name the resource and the stage that hold a loader back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.loader.metrics.meter import Stage
from datapipe.report.page import Level
from datapipe.report.table import ratio

Resource = Literal["step", "caller", "lock", "storage", "cpu", "wait", "prefetch", "unknown"]

# Shares of time, unless they say otherwise.
_WAITING = 0.01  # that training waits at most while it is the limit itself
_HIGH_WAIT = 0.1  # waiting, from which on training is held back
_BUSY = 0.9  # of cores, or of a thread, from which on they are exhausted
# that a thread waits for the interpreter's lock, from which on the lock is the limit. Under Python
# code that always runs it is 0.67 and more; under decoders that release it, below 0.05.
_LOCKED = 0.4
_CALLER = 0.8  # of the thread that takes batches; what is left is the hand-over
_CALLER_OF_WAIT = 0.5  # of the waiting, likewise
_IDLE = 0.5  # of the workers, from which on more of them would not help
_ONE_CORE = 1.3  # CPU seconds a second that code under the lock and what it calls take at most
_SCALES = 1.2  # times the work of one thread, below which threads hinder each other
_MOSTLY = 0.5  # of the workers
_LESS_BUSY = 0.5  # CPU seconds a second in a stage that waits, over those in the others
_READ_RATE = 1e6  # bytes/s from storage, below which an unknown wait is not one for it
_OTHERS = 0.2  # of the cores' time, from which on other processes matter
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


def find_limit(seen: LoaderFigures) -> Limit:
    """Name what holds a loader back. A pure function: equal figures, equal verdict.

    The first rule that holds decides: training that rarely waits is the limit itself; then the
    thread that takes the batches; the interpreter's lock; a stage that workers wait in without a
    core; the cores.
    """
    found = _of_step(seen) or _of_caller(seen)
    if found is None and (usage := seen.usage) is not None:
        found = (
            _of_lock(seen, usage)
            or _of_waiting(seen)
            or _of_cores(seen, usage)
            or _of_rest(seen, usage)
        )
    found = found or _of_prefetch(seen) or _of_largest(seen)
    found = replace(found, actions=found.actions or _actions(found, seen))
    if seen.waited is None or found.stage == "step":
        return found
    reason = found.reason
    if seen.room is not None and seen.room >= _ROOM:
        reason += (
            "; on average the loader is fast enough for training, which still waits "
            f"{seen.waited:.0%} of its time: a larger prefetch_factor evens batches out"
        )
    return replace(found, reason=reason, level="bad")


def _of_step(seen: LoaderFigures) -> Limit | None:
    waited, room = seen.waited, seen.room
    if waited is None:
        return None
    # Each hand-over takes a moment, however fast batches come.
    enough = waited <= _HIGH_WAIT and room is not None and room * (1 - waited) >= _ROOM
    if waited > _WAITING and not enough:
        return None
    reason = f"it waits {waited:.1%} of its time for batches"
    if room is not None:
        reason += f"; the loader alone makes {room:.1f} times as many"
    return Limit(stage="step", resource="step", reason=reason, level="good")


def _of_caller(seen: LoaderFigures) -> Limit | None:
    """Check whether the thread that takes the batches has no time left."""
    reading = seen.reading
    if not reading.workers:
        return None
    total, least, of = reading.seconds, _CALLER, "its time"
    if seen.in_loop:
        total, least, of = reading.waited, _CALLER_OF_WAIT, "that"
    busy = ratio(sum(stage.seconds for stage in reading.caller.values()), total)
    if total > 0 and busy >= least:
        name, share = _largest(reading.caller)
        idle = min(1.0, ratio(reading.idle, reading.workers * reading.seconds))
        reason = (
            f"the thread that takes the batches spends {share * busy:.0%} of {of} in "
            f"{_SPOKEN.get(name, name)}, while workers wait {idle:.0%} of theirs"
        )
        return Limit(stage=name, resource="caller", reason=reason)
    if seen.caller_cpu is not None and seen.caller_cpu >= _BUSY * reading.seconds:
        reason = "the thread that takes the batches is busy all the time"
        return Limit(stage="unknown", resource="caller", reason=reason)
    return None


def _of_lock(seen: LoaderFigures, usage: Usage) -> Limit | None:
    cpu, workers = ratio(usage.cpu, usage.seconds), seen.reading.workers
    if seen.processes or workers < 1 or usage.cores < 2 or usage.gil is None:
        return None
    hinders = workers > 1 and seen.scaling is not None and seen.scaling < _SCALES
    if cpu > _ONE_CORE or (usage.gil < _LOCKED and not hinders):
        return None
    name, share = _largest(seen.all_stages, "cpu")
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
    name, share = _largest(seen.worked)
    if seen.threaded is not None or share < _MOSTLY:
        return None
    busy, waits = _busy_in(seen.worked, name)
    if not waits:
        return None
    who = "workers wait" if seen.reading.workers else "the loop's own thread waits"
    reason = f"{who} {share * (1 - busy):.0%} of "
    if name == "read":
        return Limit(stage=name, resource="storage", reason=f"{reason}their time for storage")
    reason += "the time there, without using a core"
    return Limit(stage=name, resource="wait", reason=reason)


def _of_cores(seen: LoaderFigures, usage: Usage) -> Limit | None:
    if usage.busy >= _BUSY:
        reason = f"all {usage.cores} cores are busy"
        if usage.others_share >= _OTHERS:
            reason += f", {usage.others / usage.seconds:.1f} of them with other processes"
    elif ratio(usage.cpu, _team(seen, usage) * usage.seconds) >= _BUSY:
        who = "each worker is" if seen.reading.workers else "the caller's thread is"
        reason = f"{who} busy, and cores are left"
    else:
        return None
    name, share = _largest(seen.all_stages, "cpu")
    if share:
        reason += f", {share:.0%} of the loader's CPU time goes into {name}"
    return Limit(stage=name, resource="cpu", reason=reason)


def _of_rest(seen: LoaderFigures, usage: Usage) -> Limit:
    rate = ratio(usage.read or 0, usage.seconds)
    idle = usage.cpu < _MOSTLY * _team(seen, usage) * usage.seconds
    if not seen.all_stages and idle and rate >= _READ_RATE:
        reason = f"cores are idle while {rate / 1e6:,.0f} MB/s come from storage"
        return Limit(stage="read", resource="storage", reason=reason)
    name, share = _largest(seen.reading.stages)
    reason = f"nothing is exhausted; workers spend {share:.0%} of their working time there"
    if name == "unknown":
        reason = f"cores are busy {usage.busy:.0%} of the time; the loader waits for something else"
    return Limit(stage=name, resource="unknown", reason=reason)


def _of_prefetch(seen: LoaderFigures) -> Limit | None:
    reading = seen.reading
    worked = sum(stage.seconds for stage in reading.stages.values())
    share = reading.idle / (reading.idle + worked) if worked > 0 else 0.0
    if not reading.workers or share < _IDLE:
        return None
    return Limit(
        stage="prefetch",
        resource="prefetch",
        reason=f"yet the loader's workers wait for work {share:.0%} of their time",
        actions=("begin more batches ahead: a larger `prefetch_factor`",),
    )


def _of_largest(seen: LoaderFigures) -> Limit:
    """Name the stage that takes most of the time, by the loader's own clocks alone."""
    name, share = _largest(seen.worked)
    if name == "unknown":
        return Limit(stage=name, resource="unknown", reason="the loader did not say where")
    busy, waits = _busy_in(seen.worked, name)
    who = "the loader, without workers, spends"
    if seen.reading.workers:
        who = "the loader's workers spend"
    reason = f"{who} {share:.0%} of the time in {_SPOKEN.get(name, name)}"
    if waits:
        reason += f", {1 - busy:.0%} of it without a processor"
    return Limit(stage=name, resource="wait" if waits else "cpu", reason=reason)


def _team(seen: LoaderFigures, usage: Usage) -> int:
    return min(max(1, seen.reading.workers), usage.cores)


def _largest(
    stages: Mapping[str, Stage], unit: Literal["seconds", "cpu"] = "seconds"
) -> tuple[str, float]:
    parts: dict[str, float] = {name: getattr(stage, unit) for name, stage in stages.items()}
    name = max(parts, key=lambda part: parts[part], default="")
    total = sum(parts.values())
    return (name, parts[name] / total) if total > 0 else ("unknown", 0.0)


def _busy_in(stages: Mapping[str, Stage], name: str) -> tuple[float, bool]:
    """Return the CPU seconds a second of a stage, and whether it waits more than the others."""
    own = stages[name]
    others = sum((stage for other, stage in stages.items() if other != name), Stage())
    busy = min(1.0, ratio(own.cpu, own.seconds))
    rest = min(1.0, ratio(others.cpu, others.seconds)) if others.cpu > 0 else 1.0
    return busy, busy < _LESS_BUSY * rest


def _actions(found: Limit, seen: LoaderFigures) -> tuple[str, ...]:
    actions = _ACTIONS.get(found.stage, ())
    if not seen.reading.workers:
        return ("prepare batches in the background: `num_workers` of at least 1", *actions)
    if (found.resource, found.stage) == ("caller", "transfer") and not seen.processes:
        lock = "leave the interpreter's lock to the thread that takes the batches"
        return (f"{lock}: fewer `num_workers`, or {_PROCESSES}", *actions)
    waits = found.resource in ("storage", "wait", "lock")
    if waits and found.stage == "read":
        # Waiting for storage needs no core.
        return ("wait for more reads at once: more `num_workers` than cores", *actions)
    holds = found.stage == "tokenize" or (waits and found.stage == "transform")
    if holds and not seen.processes:
        return (f"give every worker its own interpreter: {_PROCESSES}", *actions)
    return actions


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

_PROCESSES = "`workers='processes'`"
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
    "transform": ("do what is the same in every epoch before packing, and the rest on the device",),
    "collate": ("carry less in a batch: uint8 images, fewer fields in `meta`, smaller batches",),
    "transfer": (
        "carry images as uint8, a quarter of the bytes: `make_loader(..., device='cuda')` with "
        "the `ImageSpec` left to normalise on the device",
    ),
    "plan": ("keep the plan between runs: `cache=CacheSpec(plan=...)`",),
}
