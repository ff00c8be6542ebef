"""Memory before and after the passes of a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from examples.vlm.measure.memory import Allocations, held

WATCHED = 2  # steps on the CPU; the first one makes the states of the optimizer


class Phase(NamedTuple):
    """Memory at one point of a step, in bytes by kind.

    "allocated" is that of tensors, "peak" the most since the point before. On a GPU there are
    "reserved" from the driver, and "split": free parts of blocks that are in use in other parts. On
    the CPU the tensors are parameters, gradients, states of the optimizer and what the step
    allocates, without the batch.
    """

    name: str
    bytes: dict[str, int]

    @property
    def fragmentation(self) -> float | None:
        """Share of what is reserved that no tensor has; None on the CPU."""
        reserved = self.bytes.get("reserved")
        return 1 - self.bytes["allocated"] / reserved if reserved else None


class Phases:
    """Memory before and after the passes of the latest step that was watched.

    Hooks of the model and of the optimizer note it, so no loop has to change. Under accumulation
    the passes are those of the last batch. On the CPU, torch's profiler is needed, so only the
    first two steps are watched. `most` replaces torch's own peak on a GPU, which each point resets.
    """

    ORDER = ("before forward", "after forward", "after backward", "after step")

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        self._model, self._optimizer, self._device = model, optimizer, device
        self._found: dict[str, Phase] = {}
        self._steps = self._held = self.most = 0
        self._allocations: Allocations | None = None  # of the step that is watched
        see = [partial(self._see, name) for name in self.ORDER]
        self._hooks = [
            model.register_forward_pre_hook(see[0]),
            model.register_forward_hook(see[1]),
            optimizer.register_step_pre_hook(see[2]),
            optimizer.register_step_post_hook(see[3]),
        ]

    def found(self) -> list[Phase]:
        """Return what was seen last, in the order of a step."""
        return [self._found[name] for name in self.ORDER if name in self._found]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._allocations is not None:  # an error ended the step
            self._allocations.__exit__()
            self._allocations = None

    def _see(self, name: str, *_: Any) -> None:
        if name in self.ORDER[:2] and not torch.is_grad_enabled():
            return  # an evaluation
        if self._device.type == "cuda":
            phase = self._found[name] = Phase(name, read_memory(self._device))
            self.most = max(self.most, phase.bytes["peak"])
            return
        if self._allocations is None:
            if name != self.ORDER[0] or self._steps == WATCHED:
                return
            self._held = sum(held(self._model, self._optimizer).values())
            self._allocations = Allocations().__enter__()
        self._allocations.mark(name)
        if name == self.ORDER[-1]:
            self._allocations.__exit__()
            for point, level in self._allocations.levels().items():
                sizes = {"allocated": self._held + level.now, "peak": self._held + level.most}
                self._found[point] = Phase(point, sizes)
            self._allocations = None
            self._steps += 1


@contextmanager
def phases_of(
    wanted: bool, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> Iterator[Phases | None]:
    """Yield the phases of a loop's steps; None where they are not wanted."""
    if not wanted:
        yield None
        return
    phases = Phases(model, optimizer, device)
    try:
        yield phases
    finally:
        phases.close()


def read_memory(device: torch.device) -> dict[str, int]:
    """Return the bytes of `Phase` on a GPU now. The peak is counted anew from here."""
    found = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {
        "allocated": found["allocated_bytes.all.current"],
        "reserved": found["reserved_bytes.all.current"],
        "peak": found["allocated_bytes.all.peak"],
        "split": found["inactive_split_bytes.all.current"],
    }


def table_of(phases: list[Phase]) -> str:
    """Phases as lines of text, in MB."""
    if not phases:
        return "memory by phase: no step was made"
    kinds = list(phases[0].bytes)
    lines = [f"{'memory by phase, MB':22}" + "".join(f"{kind:>11}" for kind in kinds)]
    for phase in phases:
        line = f"{phase.name:22}" + "".join(f"{phase.bytes[kind] / 1e6:11,.1f}" for kind in kinds)
        if phase.fragmentation is not None:
            line += f"   {phase.fragmentation:.1%} of what is reserved is unused"
        lines.append(line)
    return "\n".join(lines)
