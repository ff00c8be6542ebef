"""Time of profiled steps by stage of the model, its backward pass included.

An operator of the forward pass belongs to the range (`stage:...`) that it runs in. A node of the
backward pass has the sequence number of the operator that made it, and so its stage; blocks that
are recomputed run inside of such a node. Times are an operator's own, so that every microsecond
counts once; what no operator takes, Python and waiting, is "other".

Events are told apart by `id()`: calls of Python functions, which a trace with stacks has, all have
the number 0 as their own `id`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

NAMES = ("vision", "projector", "language", "loss", "optimizer", "exchange", "other")

ENCODER_SHARE = 0.4  # of a step, above which the encoder is worth a remedy

REMEDY = (
    "freeze it (--freeze-vision), give fewer pixels (a smaller image_size or max_pixels), cache "
    "its features if it is frozen, or bound the images of a pack (--max-images)"
)

_EXCHANGE = (
    *("c10d::", "gloo:", "nccl:", "record_param_comms"),
    *("FSDP::all_gather", "FSDP::reduce_scatter", "FSDP::post_backward_reduce"),
)
_NODE = "autograd::engine::evaluate_function"


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Seconds of the profiled steps, by the clock and by stage.

    Those by stage are the own time of operators on the GPU, whose "other" is idle time, or on the
    CPU if there is no GPU.
    """

    steps: int
    seconds: float
    by_stage: dict[str, float]

    def share(self, name: str) -> float:
        return self.by_stage[name] / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        lines = [f"{'stage':12}{'ms a step':>12}{'share':>8}"]
        for name, spent in self.by_stage.items():
            lines.append(f"{name:12}{spent / self.steps * 1e3:12,.2f}{self.share(name):8.1%}")
        lines.append(f"{'step':12}{self.seconds / self.steps * 1e3:12,.2f}")
        return "\n".join(lines)


def stages_of(events: Iterable[Any]) -> Stages:
    """Add up the own time of events (`FunctionEvent`) of whole steps by stage."""
    on_cpu = [event for event in events if "CPU" in str(event.device_type)]
    on_cpu.sort(key=lambda event: (event.thread, event.time_range.start, -event.time_range.end))
    steps = [event for event in on_cpu if event.name.startswith("ProfilerStep")]
    main = {event.thread for event in steps}
    on_device = any(event.self_device_time_total for event in on_cpu)
    by_number = _numbers(on_cpu)
    spent = dict.fromkeys(NAMES, 0.0)
    found: dict[int, str] = {}
    before = "other"
    for event in on_cpu:
        stage = _stage(event, found, by_number, before)
        found[id(event)] = stage
        if event.name.startswith(_NODE):
            before = stage
        if on_device:
            spent[stage] += event.self_device_time_total
        elif event.thread in main:  # what other threads do meanwhile takes no time of a step
            spent[stage] += event.self_cpu_time_total
    seconds = sum(event.time_range.elapsed_us() for event in steps)
    if on_device:
        spent["other"] += max(0.0, seconds - sum(spent.values()))
    return Stages(
        steps=max(1, len(steps)),
        seconds=seconds / 1e6,
        by_stage={name: each / 1e6 for name, each in spent.items()},
    )


def _numbers(events: list[Any]) -> dict[int, str]:
    """Stage by sequence number: of the last operator with it, which is the one that made a node."""
    inside: dict[int, str] = {}
    backward: set[int] = set()  # events inside of a node of the backward pass
    numbers: dict[int, str] = {}
    for event in events:
        parent = id(event.cpu_parent)
        inside[id(event)] = stage = _range(event.name) or inside.get(parent, "")
        if event.name.startswith(_NODE) or parent in backward:
            backward.add(id(event))
        elif event.sequence_nr >= 0:
            numbers[event.sequence_nr] = stage
    return numbers


def _range(name: str) -> str:
    """Return the stage that a range, an optimizer or an exchange says it is."""
    if name.startswith("stage:"):
        return name.removeprefix("stage:")
    if name.startswith("Optimizer."):
        return "optimizer"
    return "exchange" if name.startswith(_EXCHANGE) else ""


def _stage(event: Any, found: dict[int, str], numbers: dict[int, str], before: str) -> str:
    """Return the stage of an event whose parents are known."""
    if said := _range(event.name):
        return said
    if event.name.startswith(_NODE):
        # Adding a gradient to a parameter's has no number; it ends the node before it.
        return numbers.get(event.sequence_nr, before) or "other"
    return found.get(id(event.cpu_parent), "other") if event.cpu_parent else "other"


def verdict(stages: Stages) -> str:
    """Return a sentence if the encoder takes most of a step; else nothing."""
    if stages.share("vision") <= ENCODER_SHARE:
        return ""
    return f"The encoder takes {stages.share('vision'):.0%} of a step: {REMEDY}."
