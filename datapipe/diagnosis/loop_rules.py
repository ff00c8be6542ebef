"""Rules that name what holds a training loop back, and the next things to do.

First question: is the device busy? If not, does the loop wait for data, for copies, for other
ranks, for values that Python reads back? Of the losses that exceed their limit, the largest is
named. A host that queues work ahead may wait without a loss, so the device's clock decides if there
is one.
"""

from __future__ import annotations

from dataclasses import replace

from datapipe.diagnosis.loop_figures import Kind, LoopFigures, Verdict
from datapipe.diagnosis.step_figures import StepRoofline
from datapipe.extras import install_command
from datapipe.report.page import Level
from datapipe.report.table import counted

LIMITS: dict[Kind, float] = {
    "data": 0.1,
    "transfer": 0.1,
    "communication": 0.2,
    "straggler": 0.1,
    "synchronisation": 0.1,
    "loop": 0.25,
}
"""Shares of a loop's time from which on a loss is the verdict."""
MOSTLY = 0.5
"""Share from which on a cause explains a figure, such as memory the time of a step."""
ENOUGH = 3
"""Turns without which there is no verdict."""

_GPU_TARGET = 0.9  # share of time that a GPU should be busy
_WAIT_TARGET = 0.01  # share of time that a loop should wait at most
_SHARE_LIMIT = 0.01  # most that a dataset's share of the samples may differ from that in the plan
_ENOUGH_SAMPLES = 10_000  # without which shares of datasets are not compared
_NOTICEABLE = 0.005  # least share that a sentence names
_DEVIATIONS = 4  # standard deviations that no share is off by chance

_NEVER = {
    "first": "give the loader more batches a pass, as by `epochs=None`: the first does not count",
    "disturbed": "give each loop its own `Monitor`, and mend steps that raise: neither counts",
}
"""Actions where steps are left out for a reason that lasts, however long the loop runs."""
_TUNE = "let the loader find its settings: `datapipe tune-workers SHARDS`"
_TRACE = "look at the gaps between operators: `monitor.trace('trace.json')`"
_LARGER = "give torch more at once: a larger batch, `torch.compile(model)`, fused optimizers"
_LINES = "name the lines that wait for the device: `torch.cuda.set_sync_debug_mode('warn')`"


def judge(figures: LoopFigures) -> Verdict:
    """Conclude what holds a loop back. A pure function: equal figures, equal verdict."""
    return _with_shares(_judge_time(figures), figures)


def _judge_time(figures: LoopFigures) -> Verdict:
    if figures.turns < ENOUGH:
        actions = [_NEVER[why] for why in _NEVER if figures.left_out.get(why, 0) > ENOUGH]
        return _verdict(
            "unknown",
            f"{counted(figures.turns, 'step')} timed so far, and a verdict takes {ENOUGH}: the "
            "first steps are left out",
            *(actions or ["let the loop run longer"]),
            level="warn",
        )
    losses = {kind: loss for kind, loss in _losses(figures).items() if loss >= LIMITS[kind]}
    if losses:
        return _RULES[max(losses, key=lambda kind: losses[kind])](figures)
    recorded, roofline = figures.recorded, figures.recorded.roofline
    on_cpu = figures.busy is None and figures.idle is None
    in_python = on_cpu and recorded.steps > 0 and recorded.operators < MOSTLY
    if in_python or (figures.busy is not None and figures.busy < _GPU_TARGET):
        return _of_host(figures)
    if roofline is not None and roofline.memory >= MOSTLY:
        return _of_memory(roofline)
    if on_cpu and roofline is not None and roofline.memory + roofline.arithmetic < MOSTLY:
        return _verdict(
            "unknown",
            f"nothing that was measured explains most of a step: {_waiting(figures)}, and "
            f"{_peak(roofline)}",
            _LARGER,
            "look for other processes on the same processors",
            _TRACE,
            level="warn",
        )
    return _of_compute(figures)


def _verdict(kind: Kind, sentence: str, *actions: str, level: Level = "bad") -> Verdict:
    return Verdict(kind=kind, sentence=sentence, actions=actions, level=level)


def _with_shares(verdict: Verdict, figures: LoopFigures) -> Verdict:
    """Add the dataset whose share of the samples is furthest from the plan's, if it is too far."""
    compared = [dataset for dataset in figures.datasets if dataset.is_compared]
    if sum(dataset.samples for dataset in compared) < _ENOUGH_SAMPLES:
        return verdict
    most = max(compared, key=lambda dataset: abs(dataset.share - dataset.planned))
    if abs(most.share - most.planned) <= max(_SHARE_LIMIT, _DEVIATIONS * most.chance):
        return verdict
    return replace(
        verdict,
        sentence=f"{verdict.sentence}; {most.share:.1%} of the samples come from "
        f"{most.name!r}, and the plan gives it {most.planned:.1%}",
        actions=(
            *verdict.actions,
            "find what is missing: samples that `on_error='skip'` or `exclude=` leaves out count "
            "in the plan, and are not `valid` in batches",
        ),
        level="warn" if verdict.level == "good" else verdict.level,
    )


def _losses(figures: LoopFigures) -> dict[Kind, float]:
    ranks: dict[Kind, float] = {
        "communication": figures.exchanging,
        "straggler": figures.straggling,
    }
    if figures.busy is not None and figures.busy >= _GPU_TARGET:
        # Collectives keep a GPU busy too; all else would have left it without work.
        return ranks
    return {
        "data": figures.waiting,
        "transfer": figures.carrying,
        **ranks,
        "synchronisation": figures.recorded.synchronisation,
        "loop": figures.rest if figures.marked else 0.0,
    }


def judge_waiting(figures: LoopFigures) -> Verdict:
    sentence = f"data-bound: {figures.waiting:.0%} of the time goes into waiting for batches"
    actions = figures.hints or ("prepare batches in the background, in threads or processes",)
    if figures.limit is not None:
        sentence += f"; {figures.limit.reason}"
        remedies = "see what each remedy would give here: `datapipe profile SHARDS`"
        actions = (*figures.limit.actions, _TUNE, remedies)
    return _verdict("data", sentence, *actions)


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
    share, beside, aside = f"{figures.exchanging:.0%}", figures.recorded.beside, ""
    if beside >= _NOTICEABLE and figures.busy is not None:
        aside = f"; another {beside:.0%} is hidden behind compute"
    elif beside >= _NOTICEABLE:
        # The collectives take processors from the operators, so how much they hide is not known.
        share += f" to {min(figures.exchanging + beside, 1.0):.0%}"
        aside = f", {beside:.0%} of it while operators ran on the same processors"
    compare = "compare this report on all ranks: one that waits for data holds up all others"
    return _verdict(
        "communication",
        f"communication-bound: {share} of the time goes into exchange with other ranks{aside}",
        *([compare] if figures.recorded.ranks is None else []),
        "exchange less often: accumulate gradients, with `no_sync()` in all but the last batch",
        "exchange in larger parts: DDP's `bucket_cap_mb`; with FSDP, shard larger blocks",
        "exchange fewer bytes: `model.register_comm_hook(None, bf16_compress_hook)`, or PowerSGD",
        "hide it behind the backward pass: `static_graph=True`, `gradient_as_bucket_view=True`, "
        "FSDP's prefetching; `monitor.trace(...)` shows whether they do",
    )


def _of_straggler(figures: LoopFigures) -> Verdict:
    ranks = figures.recorded.ranks
    assert ranks is not None
    late, slowest = f"{ranks.late * 1e3:.3g} ms", ranks.slowest
    actions = [
        "give all ranks equal work in each step: `pack=`, or `group=`; `datapipe plan --world-size "
        "N` shows the imbalance",
        f"if the work of rank {slowest} is no larger, look at its machine: other processes, "
        "clocks, heat, links",
    ]
    if slowest is None:
        found = f"this rank waits for slower ones, some {late} a step, and the slowest changes from"
        found, actions = f"{found} step to step", actions[:1]
    elif ranks.holding > ranks.waiting:
        found = (
            f"the other ranks wait for this one (rank {slowest}), whose steps take {late} longer"
        )
    elif ranks.for_data < MOSTLY:
        found = f"this rank waits for rank {slowest}, whose steps take {late} longer"
    else:
        found = f"this rank waits for rank {slowest}, which gets its batches {late} later"
        actions = [
            f"look at the report of rank {slowest}: it names the stage of its loader",
            "give that rank as many CPUs and workers as the others, and as fast a disk",
        ]
    sentence = f"straggler-bound: for {figures.straggling:.0%} of the time {found}"
    return _verdict("straggler", sentence, *actions)


def _of_synchronisation(figures: LoopFigures) -> Verdict:
    recorded = figures.recorded
    sentence = (
        f"synchronisation-bound: for {recorded.synchronisation:.0%} of the time Python waits for "
        "values from the device"
    )
    if recorded.waiter:
        sentence += f", mostly in {recorded.waiter}"
    actions = [
        "keep such values on the device (`loss.detach()`, summed there), and read them every "
        "50 steps or so",
        "replace `if tensor:` and masks by `torch.where`, and `.cpu()` by "
        "`.to('cpu', non_blocking=True)` that is read a step later",
        _LINES,
    ]
    # Waiting for a device that is always busy costs nothing.
    unknown = figures.busy is None and figures.idle is not None
    if unknown:
        sentence += "; whether the GPU has work meanwhile is not known"
        actions.insert(0, f"let the GPU say how busy it is: {install_command('gpu')}")
    return _verdict("synchronisation", sentence, *actions, level="warn" if unknown else "bad")


def _of_loop(figures: LoopFigures) -> Verdict:
    return _verdict(
        "loop",
        f"loop-bound: {figures.rest:.0%} of the time goes into what the loop does outside of step, "
        "transfers and waiting",
        "if that is training too, put it into `with monitor.step():`",
        "write logs, checkpoints and pictures less often, or in another thread",
        *([_LINES] if figures.idle is not None else []),
    )


def _of_host(figures: LoopFigures) -> Verdict:
    if figures.busy is not None:
        sentence = (
            f"the GPU is busy {figures.busy:.0%} of the time (target {_GPU_TARGET:.0%}), and "
            "neither data nor copies nor reading values explains it: Python asks for work more "
            "slowly than the GPU does it"
        )
    else:
        sentence = (
            f"torch's operators take {figures.recorded.operators:.0%} of a step; Python, other "
            "libraries or waiting take the rest"
        )
    return _verdict("host", f"host-bound: {sentence}", _LARGER, _TRACE, level="warn")


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


def _of_compute(figures: LoopFigures) -> Verdict:
    sentence = f"compute-bound: {_waiting(figures)}"
    if figures.busy is not None:
        sentence += f", and the GPU is busy {figures.busy:.0%} of it"
    if figures.waiting > _WAIT_TARGET:
        return _verdict(
            "compute",
            f"{sentence}, more than the {_WAIT_TARGET:.0%} that it should",
            _TUNE,
            "see what a faster pipeline could give at most: `monitor.headroom(loader, step)`",
            level="warn",
        )
    sentence += ": the pipeline keeps up"
    if figures.recorded.roofline is not None:
        sentence += f"; {_peak(figures.recorded.roofline)}"
    action = "make the step itself faster: the pipeline cannot"
    return _verdict("compute", sentence, action, level="good")


def _peak(roofline: StepRoofline) -> str:
    return (
        f"a step of {roofline.seconds * 1e3:.3g} ms would take {roofline.moved * 1e3:.3g} ms for "
        f"its bytes alone, and {roofline.at_peak * 1e3:.3g} ms for its FLOPs"
    )


def _waiting(figures: LoopFigures) -> str:
    return f"waiting for batches takes {figures.waiting:.1%} of the time"


_RULES = {
    "data": judge_waiting,
    "transfer": _of_transfer,
    "communication": _of_communication,
    "straggler": _of_straggler,
    "synchronisation": _of_synchronisation,
    "loop": _of_loop,
}
