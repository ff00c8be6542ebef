"""A hundred sweeps with known answers: kinds of loaders, noise, drift, budgets."""

import random

from tests.case_files import table

from .synthetic import Case, Drift, Machine, decline, intruder, steady, wander, wave

MACHINES = table("tune/machines")


def drifts(seed: int) -> tuple[Drift, ...]:
    """Five ways in which a shared machine changes under a measurement."""
    generator = random.Random(f"drift {seed}")
    start = 1000 + generator.uniform(2, 25)
    return (
        steady,
        wave(generator.uniform(9, 50), 0.15, generator.random()),
        decline(1000.0, 50.0, 0.3),
        intruder(start, start + generator.uniform(5, 15), 0.4),
        wander(seed, 0.04),
    )


def hundred() -> list[Case]:
    """As fast as they come; budgets of 30 to 90 seconds."""
    cases = []
    for seed in range(100):
        number, kind = divmod(seed, 5)
        machine = Machine(**MACHINES["hundred"][number])
        budget = (60.0, 45.0, 60.0, 90.0, 30.0)[(number + kind) % 5]
        cases.append(Case(machine=machine, drift=drifts(seed)[kind], budget=budget, seed=seed))
    return cases


def paced() -> list[Case]:
    """At the speed of training."""
    cases = []
    for seed in range(3 * len(MACHINES["paced"])):
        given = dict(MACHINES["paced"][seed // 3])
        step, drift = given.pop("step"), (steady, wander(seed, 0.01))[seed % 2]
        cases.append(Case(machine=Machine(**given), drift=drift, step=step, seed=seed))
    return cases
