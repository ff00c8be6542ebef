"""A trace of some steps, for https://ui.perfetto.dev, by `torch.profiler`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

SKIP, WARM_UP, ACTIVE = 5, 2, 3
"""Steps that are left alone, that the profiler is started for, and that are in the trace."""


@contextmanager
def profiled(path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a function to call after every step; None traces nothing.

    Args:
        path: of the trace, written after step 10.

    Raises:
        ValueError: its folder is not there.
    """
    if path is None:
        yield lambda: None
        return
    if not path.parent.is_dir():
        raise ValueError(f"--profile {path}: there is no folder {path.parent}; make it first")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch 2.13 prints when it begins
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    written = False

    def write(trace: profile) -> None:
        nonlocal written
        trace.export_chrome_trace(str(path))
        written = True

    with profile(
        activities=activities,
        schedule=schedule(skip_first=SKIP, wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1),
        on_trace_ready=write,
        profile_memory=True,
    ) as trace:
        yield trace.step
    if written:
        print(f"trace of {ACTIVE} steps: {path}", file=sys.stderr)
    else:
        least = SKIP + WARM_UP + ACTIVE
        print(f"no trace: it needs {least} steps or more; give --steps {least}", file=sys.stderr)
