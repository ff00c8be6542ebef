"""Rules that name what holds a training loop back, and the next things to do.

First question: is the device busy? If not, does the loop wait for data, for copies, for other
ranks, for values that Python reads back? Of the losses that exceed their limit, the largest is
named. A host that queues work ahead may wait without a loss, so the device's clock decides if there
is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from datapipe.diagnosis.loop_figures import DatasetShare, Kind, LoopFigures, Verdict
from datapipe.diagnosis.step_roofline import StepRoofline
from datapipe.report.page import Level

GPU_TARGET = 0.9
"""Share of time that a GPU should be busy."""
WAIT_TARGET = 0.01
"""Share of time that a loop should wait at most."""
WAIT_LIMIT = 0.1
"""Share of time waiting from which on a loop is data-bound, and the log warns."""
TRANSFER_LIMIT = 0.1
"""Share of time in transfers from which on a loop is transfer-bound."""
COMMUNICATION_LIMIT = 0.2
"""Share of time in collectives, not hidden, from which on a loop is communication-bound."""
STRAGGLER_LIMIT = 0.1
"""Share of time that ranks wait for a slower one, from which on a loop is straggler-bound."""
MOSTLY = 0.5
"""Share from which on a cause explains a figure, such as memory the time of a step."""
SYNCHRONISATION_LIMIT = 0.1
"""Share of time blocked in calls such as `.item()` from which on a loop is synchronisation-bound,
if the device is not known to be busy meanwhile."""
LOOP_LIMIT = 0.25
"""Share of time outside of step, transfer and waiting from which on a loop is loop-bound."""
SHARE_LIMIT = 0.01
"""Most that a dataset's share of the samples may differ from that in the plan."""
ENOUGH_SAMPLES = 10_000
"""Samples without which shares of datasets are not compared."""
ENOUGH = 3
"""Turns without which there is no verdict."""

_NOTICEABLE = 0.005  # least share that a sentence names
_DEVIATIONS = 4  # standard deviations that no share is off by chance

_TUNE = "let the loader find its settings: `datapipe tune-workers SHARDS`"
_PROBE = "name the lines that wait for the device: `Monitor(probe=True)`"


class _Loss(NamedTuple):
    """A way to lose time: its share, and from which share on it is the verdict."""

    kind: Kind
    share: float
    limit: float
    judge: Callable[[LoopFigures], Verdict]


def judge(figures: LoopFigures) -> Verdict:
    """Conclude what holds a loop back. A pure function: equal figures, equal verdict."""
    return _with_shares(_judge_time(figures), figures)


def _judge_time(figures: LoopFigures) -> Verdict:
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
    on_cpu = figures.busy is None and figures.idle is None
    if on_cpu and figures.operators is not None and figures.operators < MOSTLY:
        return _of_python(figures.operators)
    roofline = figures.roofline
    if roofline is not None and roofline.memory >= MOSTLY:
        return _of_memory(roofline)
    explained = 1.0 if roofline is None else roofline.memory + roofline.arithmetic
    if on_cpu and roofline is not None and explained < MOSTLY:
        return _of_nothing(figures, roofline)
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


def _with_shares(verdict: Verdict, figures: LoopFigures) -> Verdict:
    """Add the dataset whose share of the samples is furthest from the plan's, if it is too far."""

    def off(dataset: DatasetShare) -> float:
        return abs(dataset.share - dataset.planned)

    compared = [dataset for dataset in figures.datasets if dataset.is_compared]
    if sum(dataset.samples for dataset in compared) < ENOUGH_SAMPLES:
        return verdict
    found = [d for d in compared if off(d) > max(SHARE_LIMIT, _DEVIATIONS * d.chance)]
    if not found:
        return verdict
    most = max(found, key=off)
    return replace(
        verdict,
        sentence=f"{verdict.sentence}; {most.share:.1%} of the samples are of the dataset "
        f"{most.name!r}, and the plan gives it {most.planned:.1%}",
        actions=(
            *verdict.actions,
            "find what is missing: samples that `on_error='skip'` or `exclude=` leaves out count "
            "in the plan, and are not `valid` in batches",
        ),
        level="warn" if verdict.level == "good" else verdict.level,
    )


def _losses(figures: LoopFigures) -> list[_Loss]:
    of_ranks = [
        _Loss("communication", figures.exchanging, COMMUNICATION_LIMIT, _of_communication),
        _Loss("straggler", figures.straggling, STRAGGLER_LIMIT, _of_straggler),
    ]
    if figures.busy is not None and figures.busy >= GPU_TARGET:
        # Collectives keep a GPU busy too; all else would have left it without work.
        return of_ranks
    blocked = figures.synchronisation or 0.0
    aside = max(0.0, figures.rest - figures.synchronisation_outside)
    return [
        _Loss("data", figures.waiting, WAIT_LIMIT, judge_waiting),
        _Loss("transfer", figures.carrying, TRANSFER_LIMIT, _of_transfer),
        *of_ranks,
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
    share, beside = f"{figures.exchanging:.0%}", figures.beside
    if figures.busy is None and beside >= _NOTICEABLE:
        # The collectives take processors from the operators, so how much they hide is not known.
        share += f" to {min(figures.exchanging + beside, 1.0):.0%}"
    sentence = f"communication-bound: {share} of the time goes into exchange with other ranks"
    if figures.busy is not None and beside >= _NOTICEABLE:
        sentence += f"; beside it, {beside:.0%} is hidden behind compute"
    elif beside >= _NOTICEABLE:
        sentence += f", {beside:.0%} of it while operators ran on the same processors"
    actions = [
        "exchange less often: accumulate gradients, with `no_sync()` in all but the last batch",
        "exchange in larger parts: DDP's `bucket_cap_mb`; with FSDP, shard larger blocks",
        "exchange fewer bytes: `model.register_comm_hook(None, bf16_compress_hook)`, or PowerSGD",
        "hide it behind the backward pass: `static_graph=True`, `gradient_as_bucket_view=True`, "
        "FSDP's prefetching; `monitor.trace(...)` shows whether they do",
    ]
    if figures.ranks is None:
        actions.insert(
            0, "compare this report on all ranks: one that waits for data holds up all others"
        )
    return _verdict("communication", sentence, *actions)


def _of_straggler(figures: LoopFigures) -> Verdict:
    ranks = figures.ranks
    assert ranks is not None
    late = f"{ranks.late * 1e3:.3g} ms"
    balance = (
        "give all ranks equal work in each step: `pack=`, or `group=`; `datapipe plan --world-size "
        "N` shows the imbalance"
    )
    if ranks.slowest is None:
        return _verdict(
            "straggler",
            f"straggler-bound: for {figures.straggling:.0%} of the time this rank waits for slower "
            f"ones, some {late} a step, and the slowest changes from step to step",
            balance,
        )
    machine = (
        f"if the work of rank {ranks.slowest} is no larger, look at its machine: other processes, "
        "clocks, heat, links"
    )
    if ranks.holding > ranks.waiting:
        return _verdict(
            "straggler",
            f"straggler-bound: for {figures.straggling:.0%} of the time the other ranks wait for "
            f"this one (rank {ranks.slowest}), whose steps take {late} longer",
            balance,
            machine,
        )
    sentence = (
        f"straggler-bound: for {figures.straggling:.0%} of the time this rank waits for rank "
        f"{ranks.slowest}, "
    )
    if ranks.for_data >= MOSTLY:
        return _verdict(
            "straggler",
            f"{sentence}which gets its batches {late} later",
            f"look at the report of rank {ranks.slowest}: it names the stage of its loader",
            "give that rank as many CPUs and workers as the others, and as fast a disk",
        )
    return _verdict("straggler", f"{sentence}whose steps take {late} longer", balance, machine)


def _of_synchronisation(figures: LoopFigures) -> Verdict:
    sentence = (
        f"synchronisation-bound: for {figures.synchronisation:.0%} of the time Python waits for "
        f"values from the device{_at(figures)}"
    )
    actions = [
        "keep such values on the device (`loss.detach()`, summed there), and read them every "
        "50 steps or so",
        "replace `if tensor:` and masks by `torch.where`, and `.cpu()` by "
        "`.to('cpu', non_blocking=True)` that is read a step later",
    ]
    if not figures.lines:
        actions.append(_PROBE)
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
        *([_PROBE] if figures.idle is not None and not figures.lines else []),
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


def _of_python(operators: float) -> Verdict:
    return _verdict(
        "host",
        f"host-bound: torch's operators take {operators:.0%} of a step; Python, other libraries or "
        "waiting take the rest",
        "look at what the step does beside its operators: `monitor.trace('trace.json')`, py-spy",
        "give torch more at once: a larger batch, `torch.compile(model)`",
        level="warn",
    )


def _of_memory(roofline: StepRoofline) -> Verdict:
    longest = f", mostly {roofline.longest}" if roofline.longest else ""
    return _verdict(
        "memory",
        f"memory-bound: {roofline.memory:.0%} of a step is what its operators need to move their "
        f"bytes{longest}, and {roofline.arithmetic:.0%} what others need for their FLOPs; "
        f"{_peak(roofline)}",
        "let operators pass values on without memory: `torch.compile(model)`, fused optimizers, "
        "`scaled_dot_product_attention`",
        "move fewer bytes: bfloat16 (`torch.autocast`), no copies between layouts",
        "recompute less: fewer checkpointed blocks, if memory allows it",
        level="warn",
    )


def _of_nothing(figures: LoopFigures, roofline: StepRoofline) -> Verdict:
    return _verdict(
        "unknown",
        f"nothing that was measured explains most of a step: {_waiting(figures)}, and "
        f"{_peak(roofline)}",
        "let fewer and larger operators do the work: a larger batch, `torch.compile(model)`",
        "look for other processes on the same processors",
        "look at the operators one by one: `monitor.trace('trace.json')`",
        level="warn",
    )


def _peak(roofline: StepRoofline) -> str:
    """Compare a step with the machine's peaks."""
    return (
        f"a step of {roofline.seconds * 1e3:.3g} ms would take {roofline.moved * 1e3:.3g} ms for "
        f"its bytes alone, and {roofline.at_peak * 1e3:.3g} ms for its FLOPs"
    )


def _waiting(figures: LoopFigures) -> str:
    waiting = f"{figures.waiting:.1%}" if figures.waiting < 0.1 else f"{figures.waiting:.0%}"
    return f"waiting for batches takes {waiting} of the time"


def _of_compute(figures: LoopFigures) -> Verdict:
    sentence = f"compute-bound: {_waiting(figures)}"
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
    sentence = f"{sentence}: the pipeline keeps up"
    if figures.roofline is not None:
        sentence += f"; {_peak(figures.roofline)}"
    return _verdict("compute", sentence, action, level="good")


def _at(figures: LoopFigures) -> str:
    """Name the line that most of the time is spent in, or the operator."""
    most = max((line.turns for line in figures.lines), default=0)
    # A line that was met once may be work of every hundredth turn.
    for line in figures.lines:
        if line.turns >= most / 2:
            return f", mostly in {line.call} at {line.where}"
    return f", mostly in {figures.waiter}" if figures.waiter else ""
