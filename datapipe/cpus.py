"""CPUs that this process may use."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Annotated

from datapipe.declared import Count, Natural, Refused

_ALWAYS_WORKERS, _WORKERS_PER_CPU = 512, 16


def own_cpus() -> set[int]:
    """Return the numbers of the CPUs that this process may run on."""
    return os.sched_getaffinity(0)


def available_cpus() -> int:
    """Count the CPUs by affinity and by the cgroup's quota, at least 1."""
    return max(1, min(len(own_cpus()), cgroup_quota()))


def _few_enough(workers: int) -> int:
    """Refuse numbers of workers that take too long to start on this machine."""
    cpus = available_cpus()
    most = max(_ALWAYS_WORKERS, _WORKERS_PER_CPU * cpus)
    if workers > most:
        raise Refused(
            f"at most {most} workers; this process may use {cpus} CPU cores, and about as many "
            "workers are usual"
        )
    return workers


WorkerCount = Annotated[Natural, _few_enough]
PackWorkers = Annotated[Count, _few_enough]


def cpu_model() -> str:
    """Return the model of the processors, or their architecture if the model is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the CPUs that the control group grants, rounded up; a large number without a limit."""
    unlimited = 1 << 16
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        if quota == "max" or int(quota) <= 0:
            return unlimited
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return unlimited
