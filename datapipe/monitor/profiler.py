"""torch's profiler: whether it runs, starting it, and ranges that it shows."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import ExitStack
from typing import Any

from datapipe.loader.metrics.stage_clock import open_range


def profiled() -> bool:
    """Check whether a profiler of torch runs, ours included.

    torch has no public question for this; the answer is no where the flag is missing.
    """
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False))


def prepared() -> bool:
    """Check whether there is a `torch.profiler.profile` that runs, or may run yet.

    Starting ours would take its events, or end the process. torch counts its steps until its `with`
    block is left, and for good if it was started and stopped without one.
    """
    from torch.autograd.profiler import KinetoStepTracker

    there = KinetoStepTracker.erase_step_count("ProfilerStep")
    if there:
        KinetoStepTracker.init_step_count("ProfilerStep")
    return bool(there) and any(map(_may_run, _all(sys.modules["torch"].profiler.profile)))


def _may_run(profile: Any) -> bool:
    """Check whether a `torch.profiler.profile` is not stopped: it is in a step, or before any."""
    if profile.step_rec_fn:
        return True
    if profile.profiler is None:  # it has recorded nothing
        return not profile.step_num
    return profile.profiler.kineto_results is None


def _all(kind: type[Any]) -> list[Any]:
    """Return all objects of a class: torch has no list of its profilers."""
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def start_profiler(**options: bool) -> Any:
    """Start torch's profiler, to be left like a `with` block; it may fail for any reason.

    None without torch, or if a profiler of the user is there.
    """
    torch = sys.modules.get("torch")
    if torch is None or profiled() or prepared():
        return None
    # Kineto reads its level when it is first used; torch 2.13 prints two lines otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    device = "cuda" if torch.cuda.is_initialized() else None
    profiler = torch.autograd.profiler.profile(use_kineto=True, use_device=device, **options)
    profiler.__enter__()
    return profiler


def stop_profiler(profiler: Any) -> bool:
    """Stop our profiler; False if one of the user took over, which then has its events."""
    others = [each for each in _all(type(profiler)) if each is not profiler] if prepared() else []
    if not profiled() or any(each.entered and each.kineto_results is None for each in others):
        return False
    profiler.__exit__(None, None, None)
    return True


class Ranges:
    """Named ranges of one thread, nested: torch's, and NVIDIA's through NVTX if there is a GPU."""

    def __init__(self) -> None:
        self._open: list[ExitStack] = []

    def push(self, name: str) -> None:
        if "torch" in sys.modules:
            self._open.append(ExitStack())
            open_range(name, self._open[-1])

    def pop(self) -> None:
        if self._open:
            self._open.pop().close()

    def close(self) -> None:
        while self._open:
            self.pop()
