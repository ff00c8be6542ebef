"""Sweeps of synthetic loaders on a virtual clock."""

import pytest

from datapipe.tune import trial as tune_trial
from datapipe.tune.job import tune
from datapipe.tune.setting import grid
from datapipe.tune.sweep import Goal

from .synthetic import PREFETCH, WORKERS, Case, Clock, Loader, Machine, NoMeter

CORES = Machine(name="two cores", share=2, work=0.05, noise=0.05)
WAITS = Machine(name="waits", kind="sleep", work=0.05, noise=0.05, handover=0.0001)


def tune_on(clock, make, **options):
    """Tune on a virtual clock; options are those of `tune_workers`."""
    workers = options.pop("num_workers", WORKERS)
    ahead = options.pop("prefetch_factor", PREFETCH)
    settings = grid(workers, ahead, options.pop("variants", ({},)))
    on_trial = options.pop("on_trial", None)
    machine = tune_trial.Machine(clock=clock, sleep=clock.sleep, meter=clock.meter)
    return tune(make, settings, Goal(**options), machine, on_trial)


def chosen(result):
    return result.num_workers, result.prefetch_factor


def row(result, workers, ahead=2):
    return next(
        tried
        for tried in result.settings
        if (tried.setting.num_workers, tried.setting.prefetch_factor) == (workers, ahead)
    )


@pytest.fixture(scope="session")
def run():
    """Tunes a case; further options are those of `tune_workers`."""

    def tune_case(case, made=None, meter=NoMeter, **options):
        clock = Clock(meter)
        made = [] if made is None else made

        def make(**given):
            seed = 1000 * case.seed + len(made)
            made.append(Loader(case.machine, clock, drift=case.drift, seed=seed, **given))
            return made[-1]

        return tune_on(clock, make, **{"budget": case.budget, "step_time": case.step} | options)

    return tune_case


@pytest.fixture
def sweep(run):
    """Tunes a machine of one's own."""
    return lambda machine, *made, **options: run(Case(machine=machine), *made, **options)
