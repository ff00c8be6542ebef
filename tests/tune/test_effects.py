"""Rates are compared within rounds: drift falls out, outliers hardly count."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from datapipe.diagnosis.loader_figures import Usage
from datapipe.tune.effects import (
    Effects,
    Observation,
    choose,
    fit,
    inner_noise,
    settled,
    student,
)
from datapipe.tune.setting import Setting
from datapipe.tune.sweep import Sweep, Tools
from datapipe.tune.trial import Trial

RATES = {1: 10.0, 2: 20.0, 4: 20.2}
SETTINGS = {workers: Setting(num_workers=workers, prefetch_factor=2) for workers in RATES}


def observed(
    rounds: int, *, noise: float = 0.0, drift: float = 0.0, seed: int = 0
) -> list[Observation]:
    """Rounds in which every setting was tried, on a machine that changes from round to round."""
    generator = random.Random(seed)
    return [
        Observation(
            SETTINGS[workers],
            number,
            math.log(rate) + drift * number + generator.gauss(0, noise),
            max(noise, 0.01),
        )
        for number in range(rounds)
        for workers, rate in RATES.items()
    ]


def test_drift_between_rounds_falls_out() -> None:
    effects = fit(observed(5, drift=-0.3))
    gap, error = effects.gap(SETTINGS[2], SETTINGS[1])
    assert gap == pytest.approx(math.log(2))
    assert error < 0.02


def test_a_setting_that_dropped_out_is_still_compared_within_its_rounds() -> None:
    seen = [s for s in observed(8, drift=-0.3) if s.round < 2 or s.setting != SETTINGS[1]]
    gap, _ = fit(seen).gap(SETTINGS[2], SETTINGS[1])
    assert gap == pytest.approx(math.log(2))


def test_a_spoiled_trial_hardly_counts() -> None:
    seen = observed(6, noise=0.01)
    seen[4] = seen[4]._replace(log_rate=seen[4].log_rate - 1.0)
    gap, _ = fit(seen).gap(SETTINGS[2], SETTINGS[1])
    assert gap == pytest.approx(math.log(2), abs=0.03)


def test_a_trial_that_others_disturbed_hardly_counts() -> None:
    seen = observed(4, noise=0.01)
    spoiled = [s._replace(log_rate=s.log_rate - 0.5, others=0.8) if i == 1 else s
               for i, s in enumerate(seen)]  # fmt: skip
    unknown = [s._replace(others=0.0) for s in spoiled]
    error = abs(fit(spoiled).gap(SETTINGS[2], SETTINGS[1])[0] - math.log(2))
    assert error < abs(fit(unknown).gap(SETTINGS[2], SETTINGS[1])[0] - math.log(2)) / 2


@pytest.mark.parametrize("rounds", [2, 3, 5, 10])
def test_intervals_hold_the_truth_as_often_as_they_say(rounds: int) -> None:
    held = 0
    for seed in range(200):
        effects = fit(observed(rounds, noise=0.1, drift=0.05, seed=seed))
        gap, error = effects.gap(SETTINGS[2], SETTINGS[1])
        held += abs(gap - math.log(2)) <= effects.quantile(0.975) * error
    assert 0.91 <= held / 200 <= 1


def test_more_rounds_make_narrower_intervals() -> None:
    reaches = []
    for rounds in (2, 4, 8, 16):
        _, low, high = fit(observed(rounds, noise=0.1)).interval(SETTINGS[2])
        reaches.append(high / low)
    assert reaches == sorted(reaches, reverse=True)


def test_one_trial_has_an_interval_too() -> None:
    effects = fit(observed(1, noise=0.1)[:1])
    rate, low, high = effects.interval(SETTINGS[1])
    assert low < rate < high


def test_quantiles_are_those_of_student() -> None:
    assert student(0.975, 5) == pytest.approx(2.571, rel=0.01)
    assert student(0.995, 10) == pytest.approx(3.169, rel=0.01)
    assert student(0.975, 1e9) == pytest.approx(NormalDist().inv_cdf(0.975))


def test_noise_inside_a_trial_is_that_of_its_mean() -> None:
    generator = random.Random(0)
    cycles = [generator.gauss(1, 0.2) for _ in range(64)]
    assert inner_noise(cycles) == pytest.approx(0.2 / 8, rel=0.6)
    # What is late in one group and early in the next is no noise.
    assert inner_noise([0.5, 1.5] * 32) == pytest.approx(0)
    assert inner_noise([1.0]) == 0.1


def decided(gap: float, error: float) -> Effects:
    """Two settings, 2 and 4 workers, the latter faster by `gap`, known to `error`."""
    import numpy as np

    settings = SETTINGS[2], SETTINGS[4]
    variance = error**2 / 2
    return Effects(settings, np.array([0.0, gap]), np.diag([variance, variance]), 1000.0, error)


@pytest.mark.parametrize(
    ("gap", "error", "workers"),
    [
        (0.0, 0.01, 2),
        (0.02, 0.001, 2),  # within the margin
        (0.05, 0.001, 4),
        (0.05, 0.05, 2),  # within the noise
        (0.5, 0.05, 4),
        (-0.5, 0.01, 2),
    ],
)
def test_the_smallest_is_chosen_that_is_not_worse_beyond_margin_and_noise(
    gap: float, error: float, workers: int
) -> None:
    effects = decided(gap, error)
    assert choose(effects, effects.settings).num_workers == workers


@pytest.mark.parametrize(
    ("gap", "error", "tried", "out"),
    [
        (0.0, 0.005, 5, {4: "not faster than 2 workers, prefetch 2"}),
        (0.0, 0.05, 5, {}),
        (0.2, 0.01, 5, {2: "18% slower than 4 workers, prefetch 2"}),
        (0.2, 0.01, 3, {}),  # too few trials for so little
        (0.5, 0.01, 2, {2: "39% slower than 4 workers, prefetch 2"}),
        (0.5, 0.01, 1, {}),
        (1.5, 0.01, 1, {2: "78% slower than 4 workers, prefetch 2"}),
        (0.2, 0.2, 5, {}),
    ],
)
def test_settings_are_dropped_when_more_trials_would_not_change_it(
    gap: float, error: float, tried: int, out: dict[int, str]
) -> None:
    effects = decided(gap, error)
    found = settled(effects, effects.settings, dict.fromkeys(effects.settings, tried))
    assert {setting.num_workers: reason for setting, reason in found.items()} == out


def test_a_sweep_knows_which_trials_others_disturbed() -> None:
    fast, slow = (Setting(num_workers=number, prefetch_factor=2) for number in (2, 1))

    def trial(setting: Setting, round: int, rate: float, others: float) -> Trial:
        usage = Usage(seconds=1.0, cpu=1.0, cores=2, others=2 * others, gil=None, memory=1, read=0)
        return Trial(
            batches=100,
            samples=0,
            seconds=100 / rate,
            waits=(),
            busy=0.0,
            cycles=(1 / rate,) * 20,
            setting=setting,
            round=round,
            began=0.0,
            paced=False,
            startup=0.0,
            total=1.0,
            usage=usage,
        )

    def gap(others: float) -> float:
        tools = Tools(
            make=list,
            clock=lambda: 0.0,
            watcher=None,
            max_memory=None,
            margin=0.03,
            seed=0,
            on_trial=lambda: None,
        )
        sweep = Sweep([slow, fast], 60.0, tools)
        rates = ((20.0, 10.0), (20.2, 10.0), (12.0, 10.0))
        for round, (first, second) in enumerate(rates):
            sweep.trials.append(trial(fast, round, first, others if first == 12.0 else 0.0))
            sweep.trials.append(trial(slow, round, second, 0.0))
        effects = sweep.effects()
        assert effects is not None
        return effects.gap(fast, slow)[0]

    assert gap(0.0) < gap(0.8) <= math.log(2.03)
