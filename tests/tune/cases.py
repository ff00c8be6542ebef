"""A hundred sweeps with known answers: kinds of loaders, noise, drift, budgets."""

import random

from .synthetic import Case, Drift, Machine, decline, intruder, steady, wander, wave

MACHINES = (
    Machine(name="waits for nothing but time", kind="sleep", work=0.08, noise=0.1),
    Machine(name="waits, noisy", kind="sleep", work=0.04, noise=0.4),
    Machine(name="waits, stragglers", kind="sleep", work=0.05, stragglers=0.02),
    Machine(name="two cores", kind="cpu", share=2, work=0.05, noise=0.15),
    Machine(name="two cores, stragglers", kind="cpu", share=2, work=0.04, stragglers=0.02),
    Machine(name="four cores", kind="cpu", share=4, work=0.06, noise=0.2),
    Machine(name="one core", kind="cpu", share=1, work=0.03, noise=0.1),
    Machine(name="three and a half cores", kind="cpu", share=3.5, work=0.05, noise=0.2),
    Machine(name="interpreter's lock", kind="gil", work=0.02, noise=0.1),
    Machine(name="interpreter's lock, noisy", kind="gil", work=0.03, noise=0.35),
    Machine(name="memory bandwidth", kind="memory", share=2.6, work=0.05, noise=0.1),
    Machine(name="storage", kind="storage", share=3, work=0.07, noise=0.3),
    Machine(name="storage, stragglers", kind="storage", share=6, work=0.06, stragglers=0.02),
    Machine(name="worse with more", kind="worse", share=2, work=0.05, noise=0.15),
    Machine(name="worse with more, noisy", kind="worse", share=4, work=0.04, noise=0.3),
    Machine(name="slow start", kind="cpu", share=2, work=0.04, startup=0.6, each=0.2),
    Machine(name="slow start, waits", kind="sleep", work=0.08, startup=0.5, each=0.1),
    Machine(name="busy consumer", kind="cpu", share=4, work=0.04, handover=0.015),
    Machine(name="short passes", kind="cpu", share=4, work=0.03, length=60, startup=0.05),
    Machine(name="quick batches", kind="cpu", share=2, work=0.008, noise=0.2),
)
"""Twenty; each is tuned five times, on a machine that drifts in five ways."""

PACED = (
    (Machine(name="two cores", kind="cpu", share=2, work=0.05, noise=0.15), 0.035),
    (Machine(name="two cores", kind="cpu", share=2, work=0.05, noise=0.15), 0.08),
    (Machine(name="eight cores", kind="cpu", share=8, work=0.12, noise=0.2), 0.038),
    (Machine(name="eight cores, stragglers", kind="cpu", share=8, work=0.1, stragglers=0.02), 0.06),
    (Machine(name="waits", kind="sleep", work=0.2, noise=0.2), 0.03),
    (Machine(name="interpreter's lock", kind="gil", work=0.04, noise=0.1), 0.02),
    (Machine(name="two cores, too few", kind="cpu", share=2, work=0.06, noise=0.1), 0.02),
)
"""Machines, and seconds of a step of training."""


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
    for number, machine in enumerate(MACHINES):
        for kind in range(5):
            seed = 5 * number + kind
            budget = (60.0, 45.0, 60.0, 90.0, 30.0)[(number + kind) % 5]
            cases.append(Case(machine=machine, drift=drifts(seed)[kind], budget=budget, seed=seed))
    return cases


def paced() -> list[Case]:
    """At the speed of training."""
    return [
        Case(
            machine=machine,
            drift=(steady, wander(seed, 0.01))[seed % 2],
            budget=60.0,
            step=step,
            seed=seed,
        )
        for number, (machine, step) in enumerate(PACED)
        for seed in range(3 * number, 3 * number + 3)
    ]
