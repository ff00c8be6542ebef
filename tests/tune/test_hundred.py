"""On loaders of known costs, with noise and drift, the right setting is found within the budget."""

from typing import Any

import pytest

from .cases import PACED, hundred, paced
from .synthetic import SETTINGS, Case, is_right, true_rate, true_waiting


def _answers(run: Any, cases: list[Case]) -> tuple[list[str], float]:
    """What was answered wrong, and the largest share of its budget that a sweep took."""
    wrong, most = [], 0.0
    for case in cases:
        result = run(case)
        most = max(most, result.seconds / case.budget)
        if not is_right(case, result.num_workers, result.prefetch_factor):
            right = [setting for setting in SETTINGS if is_right(case, *setting)]
            chosen = result.num_workers, result.prefetch_factor
            wrong.append(f"{case.machine.name}, seed {case.seed}: {chosen}, not {right}")
    return wrong, most


@pytest.mark.campaign
def test_of_a_hundred_sweeps_95_find_the_right_setting_and_none_exceeds_its_budget(run):
    cases = hundred()
    wrong, most = _answers(run, cases)
    assert len(cases) == 100
    assert len(wrong) <= 5, wrong
    assert most <= 1.2


@pytest.mark.campaign
def test_the_setting_that_suffices_for_training_is_found_within_the_budget(run):
    cases = paced()
    wrong, most = _answers(run, cases)
    assert len(cases) == 3 * len(PACED)
    assert len(wrong) <= len(cases) // 20, wrong
    assert most <= 1.2


@pytest.mark.campaign
def test_the_answers_that_are_compared_with_are_not_all_the_same():
    """The cases must tell a good method from one that always says the same."""
    for setting in SETTINGS:
        assert sum(is_right(case, *setting) for case in hundred()) <= 40
    assert {setting for case in paced() for setting in SETTINGS if is_right(case, *setting)} >= {
        (0, None), (2, 2), (8, 2)
    }  # fmt: skip


@pytest.mark.campaign
def test_the_costs_of_the_synthetic_loaders_are_what_they_are_said_to_be():
    by_name = {case.machine.name: case.machine for case in hundred()}
    waits = by_name["waits for nothing but time"]
    assert true_rate(waits, 8, 2) == pytest.approx(8 / waits.work, rel=0.08)
    cores = by_name["two cores"]
    assert true_rate(cores, 8, 2) == pytest.approx(2 / cores.work, rel=0.03)
    lock = by_name["interpreter's lock"]
    assert true_rate(lock, 4, 2) < true_rate(lock, 0, None)
    machine, step = PACED[0]
    assert true_waiting(machine, 1, 2, step) == pytest.approx(1 - step / machine.work, rel=0.1)
