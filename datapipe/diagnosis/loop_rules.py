"""Rules that name what holds a training loop back, and the next things to do.

First question: is the device busy? If not, does the loop wait for data, for copies, for other
ranks, for values that Python reads back? Of the losses that exceed their limit, the largest is
named. A host that queues work ahead may wait without a loss, so the device's clock decides if there
is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from datapipe.diagnosis.loader_rules import Limit
from datapipe.report.page import Level

Kind = Literal[
    "data", "transfer", "communication", "synchronisation", "loop", "host", "compute", "unknown"
]

GPU_TARGET = 0.9
"""Share of time that a GPU should be busy."""
WAIT_TARGET = 0.01
"""Share of time that a loop should wait at most."""
WAIT_LIMIT = 0.1
"""Share of time waiting from which on a loop is data-bound, and the log warns."""
TRANSFER_LIMIT = 0.1
"""Share of time in transfers from which on a loop is transfer-bound."""
COMMUNICATION_LIMIT = 0.2
"""Share of time in collectives from which on a loop is communication-bound."""
SYNCHRONISATION_LIMIT = 0.1
"""Share of time blocked in calls such as `.item()` from which on a loop is synchronisation-bound,
if the device is not known to be busy meanwhile."""
LOOP_LIMIT = 0.25
"""Share of time outside of step, transfer and waiting from which on a loop is loop-bound."""
ENOUGH = 3
"""Turns without which there is no verdict."""

_TUNE = "let the loader find its settings: `datapipe tune-workers SHARDS`"


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A line of the loop that waited for the device or for other ranks, in the turns probed."""

    where: str  # file and line of the caller, outside of torch
    call: str  # such as `Tensor.item`
    kind: Literal["synchronisation", "communication"]
    count: int  # calls
    seconds: float  # of all of them
    turns: int  # number of probed turns that made the call


@dataclass(frozen=True, kw_only=True)
class LoopFigures:
    """Measured shares of a training loop. Shares are of the loop's time, 0 to 1."""

    turns: int  # that they are of
    # wait, transfer, step, rest: on the host; together 1
    wait: float = 0.0
    transfer: float = 0.0
    step: float = 0.0
    rest: float = 0.0
    # share of time that the device had nothing to do between steps, from events on the device; None
    # without them
    idle: float | None = None
    device_transfer: float | None = None  # transfers on the device, likewise
    busy: float | None = None  # share of time that the GPU was busy, by NVML; None if it is unknown
    # blocked in calls that wait for the device; None if nothing was probed
    synchronisation: float | None = None
    synchronisation_outside: float = 0.0  # the part of it outside of the step
    communication: float = 0.0  # in collectives that Python called
    lines: tuple[Blocked, ...] = ()  # that were blocked, longest first
    marked: bool = True  # whether the loop marks its steps
    limit: Limit | None = None  # of a datapipe loader
    hints: tuple[str, ...] = ()  # on another loader

    @property
    def waiting(self) -> float:
        """Loss by waiting: no more than the device is idle between steps."""
        return self.wait if self.idle is None else min(self.wait, self.idle)

    @property
    def carrying(self) -> float:
        """Loss by transfers."""
        return self.transfer if self.device_transfer is None else self.device_transfer


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on a training loop."""

    kind: Kind  # "compute" is the good one
    sentence: str  # the finding, with figures
    actions: tuple[str, ...]  # the next things to do, most promising first
    level: Level

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  - {action}" for action in self.actions)])


class _Loss(NamedTuple):
    """A way to lose time: its share, and from which share on it is the verdict."""

    kind: Kind
    share: float
    limit: float
    judge: Callable[[LoopFigures], Verdict]


def judge(figures: LoopFigures) -> Verdict:
    """Conclude what holds a loop back. A pure function: equal figures, equal verdict."""
    if figures.turns < ENOUGH:
        return _verdict(
            "unknown",
            f"{figures.turns} steps were timed so far, and a verdict takes {ENOUGH}: the first "
            "steps are left out",
            "let the loop run longer",
            level="warn",
        )
    found = [loss for loss in _losses(figures) if loss.share >= loss.limit]
    if found:
        return max(found, key=lambda loss: loss.share).judge(figures)
    if figures.busy is not None and figures.busy < GPU_TARGET:
        return _of_host(figures)
    return _of_compute(figures)


def judge_waiting(figures: LoopFigures) -> Verdict:
    """Conclude why a loop waits for batches."""
    sentence = f"data-bound: {figures.waiting:.0%} of the time goes into waiting for batches"
    actions = figures.hints or ("prepare batches beside the training, in threads or processes",)
    if figures.limit is not None:
        sentence += f"; {figures.limit.reason}"
        remedies = "see what each remedy would give here: `datapipe profile SHARDS`"
        actions = (*figures.limit.actions, _TUNE, remedies)
    return _verdict("data", sentence, *actions)


def _verdict(kind: Kind, sentence: str, *actions: str, level: Level = "bad") -> Verdict:
    return Verdict(kind=kind, sentence=sentence, actions=actions, level=level)


def _losses(figures: LoopFigures) -> list[_Loss]:
    communication = _Loss(
        "communication", figures.communication, COMMUNICATION_LIMIT, _of_communication
    )
    if figures.busy is not None and figures.busy >= GPU_TARGET:
        # Collectives keep a GPU busy too; all else would have left it without work.
        return [communication]
    blocked = figures.synchronisation or 0.0
    aside = max(0.0, figures.rest - figures.synchronisation_outside)
    return [
        _Loss("data", figures.waiting, WAIT_LIMIT, judge_waiting),
        _Loss("transfer", figures.carrying, TRANSFER_LIMIT, _of_transfer),
        communication,
        _Loss("synchronisation", blocked, SYNCHRONISATION_LIMIT, _of_synchronisation),
        _Loss("loop", aside if figures.marked else 0.0, LOOP_LIMIT, _of_loop),
    ]


def _of_transfer(figures: LoopFigures) -> Verdict:
    return _verdict(
        "transfer",
        f"transfer-bound: {figures.carrying:.0%} of the time goes into copies to the device",
        "copy the next batch while this one is worked on: `make_loader(..., device='cuda')`",
        "otherwise copy from page-locked memory and without waiting: `pin_memory=True`, "
        "`.to(device, non_blocking=True)`",
        "copy images as uint8, a quarter of the bytes, and normalise them on the device",
    )


def _of_communication(figures: LoopFigures) -> Verdict:
    return _verdict(
        "communication",
        f"communication-bound: {figures.communication:.0%} of the time goes into exchange with "
        f"other ranks{_at(figures, 'communication')}",
        "compare this report on all ranks: one that waits for data holds up all others",
        "accumulate gradients over several steps, with `no_sync()` in all but the last",
        "let exchange and backward pass overlap: DDP's `bucket_cap_mb` and "
        "`gradient_as_bucket_view`, FSDP's prefetching; `monitor.trace(...)` shows whether they do",
    )


def _of_synchronisation(figures: LoopFigures) -> Verdict:
    sentence = (
        f"synchronisation-bound: for {figures.synchronisation:.0%} of the time Python waits for "
        f"values from the device{_at(figures, 'synchronisation')}"
    )
    actions = [
        "keep such values on the device (`loss.detach()`, summed there), and read them every "
        "50 steps or so",
        "replace `if tensor:` and masks by `torch.where`, and `.cpu()` by "
        "`.to('cpu', non_blocking=True)` that is read a step later",
    ]
    # Waiting for a device that is always busy costs nothing.
    unknown = figures.busy is None and figures.idle is not None
    if unknown:
        sentence += "; whether the GPU has work meanwhile is not known"
        actions.insert(0, "let the GPU say how busy it is: pip install 'datapipe[gpu]'")
    return _verdict("synchronisation", sentence, *actions, level="warn" if unknown else "bad")


def _of_loop(figures: LoopFigures) -> Verdict:
    return _verdict(
        "loop",
        f"loop-bound: {figures.rest:.0%} of the time goes into what the loop does outside of step, "
        "transfers and waiting",
        "if that is training too, put it into `with monitor.step():`",
        "write logs, checkpoints and pictures less often, or in a thread beside the loop",
    )


def _of_host(figures: LoopFigures) -> Verdict:
    return _verdict(
        "host",
        f"host-bound: the GPU is busy {figures.busy:.0%} of the time (target {GPU_TARGET:.0%}), "
        "and neither data nor copies nor reading values explains it: Python asks for work more "
        "slowly than the GPU does it",
        "give the GPU more at once: a larger batch",
        "ask for less in more: `torch.compile(model, mode='reduce-overhead')`, fused optimizers, "
        "CUDA graphs",
        "look at the gaps between kernels: `monitor.trace('trace.json')`",
        level="warn",
    )


def _of_compute(figures: LoopFigures) -> Verdict:
    waiting = f"{figures.waiting:.1%}" if figures.waiting < 0.1 else f"{figures.waiting:.0%}"
    sentence = f"compute-bound: waiting for batches takes {waiting} of the time"
    if figures.busy is not None:
        sentence += f", and the GPU is busy {figures.busy:.0%} of it"
    if figures.waiting > WAIT_TARGET:
        return _verdict(
            "compute",
            f"{sentence}, more than the {WAIT_TARGET:.0%} that it should",
            _TUNE,
            "see what a faster pipeline could give at most: `monitor.headroom(loader, step)`",
            level="warn",
        )
    action = "make the step itself faster: the pipeline cannot"
    return _verdict("compute", f"{sentence}: the pipeline keeps up", action, level="good")


def _at(figures: LoopFigures, kind: str) -> str:
    """Name the line that most of the time is spent in."""
    lines = [line for line in figures.lines if line.kind == kind]
    most = max((line.turns for line in lines), default=0)
    # A line that was met once may be work of every hundredth turn.
    lines = [line for line in lines if line.turns >= most / 2]
    return f", mostly in {lines[0].call} at {lines[0].where}" if lines else ""
