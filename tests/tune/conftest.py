"""Sweeps of synthetic loaders on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from datapipe.tune.job import tune_workers
from datapipe.tune.result import TuneResult

from .synthetic import Case, Clock, Loader, Machine

Sweep = Callable[..., TuneResult]


def _run(case: Case, made: list[Loader] | None = None, **options: Any) -> TuneResult:
    clock = Clock()
    made = [] if made is None else made

    def make(num_workers: int, prefetch_factor: int | None) -> Loader:
        made.append(
            Loader(
                case.machine,
                clock,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                drift=case.drift,
                seed=1000 * case.seed + len(made),
            )
        )
        return made[-1]

    options = {"budget": case.budget, "step_time": case.step, "seed": case.seed} | options
    return tune_workers(make, clock=clock, sleep=clock.sleep, **options)


@pytest.fixture(scope="session")
def run() -> Sweep:
    """Tunes a case."""
    return _run


@pytest.fixture
def sweep() -> Sweep:
    """Tunes a machine of one's own; further options are those of `tune_workers`."""

    def tune(machine: Machine, made: list[Loader] | None = None, **options: Any) -> TuneResult:
        return _run(Case(machine=machine), made, **options)

    return tune
