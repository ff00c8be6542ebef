"""What `tune_workers` does around the measuring: failures, limits, odd iterables, what it says."""

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import datapipe
from datapipe.tune.job import tune_workers
from datapipe.tune.trial import samples_of
from tests.case_files import table
from tests.loader.pair_rows import pack
from tests.loader.pair_rows import row as pair

from .conftest import CORES, WAITS, chosen, row, tune_on
from .synthetic import Clock, Loader, Machine, NoMeter

SWEEPS, REFUSED = (table(f"tune/{name}") for name in ("sweeps", "refused"))


def test_make_is_called_as_torch_wants_it_and_everything_is_closed(sweep):
    made: list[Loader] = []
    sweep(CORES, made)
    assert {(loader.workers, loader.ahead) for loader in made} == {
        (0, 0), (1, 2), (1, 4), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32)
    }  # fmt: skip
    assert all(loader.closed == 1 for loader in made)


def test_the_result_says_what_was_measured(sweep):
    result = sweep(CORES)
    best = row(result, 2)
    assert result.chosen == best
    assert best.ratio.low <= best.ratio.median <= best.ratio.high
    assert "% slower than" in row(result, 0, None).out
    document = json.loads(json.dumps(result.to_dict()))
    assert document["num_workers"] == 2
    assert len(document["settings"]) == 9
    assert len(document["trials"]) == len(result.trials)
    assert str(result) == result.reason


@pytest.mark.parametrize("name", SWEEPS)
def test_the_smallest_setting_that_is_good_enough_is_chosen_with_the_reason(sweep, name):
    case, made = SWEEPS[name], []
    result = sweep(Machine(**case["machine"]), made, **case.get("options", {}))
    best = result.chosen
    found = {"chosen": [*chosen(result)], "trials": best.trials, "startup": best.startup}
    found |= {"most": max(loader.workers for loader in made)}
    for figure, value in case["found"].items():
        assert found.get(figure, getattr(result, figure, None)) == pytest.approx(value, rel=0.06)
    assert (result.prefetch_factor is None) == (result.num_workers == 0)
    for workers, why in case.get("out", {}).items():
        assert row(result, workers).out == why
    assert case.get("reason", "") in result.reason


def test_where_larger_ones_were_left_out_that_is_said_in_place_of_a_hope():
    clock, rates = Clock(), {1: 10.0, 2: 9.0, 4: 10.95, 8: 20.0}

    def make(num_workers, prefetch_factor):
        if num_workers == 16:
            raise OSError("no memory")
        for number in itertools.count():
            clock.sleep(1 / rates[num_workers])
            yield number

    result = tune_on(clock, make, num_workers=(1, 2, 4, 8), prefetch_factor=(2,))
    assert chosen(result) == (4, 2)
    assert result.reason.endswith(
        ". 8 workers, prefetch 2: not tried, as fewer workers are as fast"
    )
    result = tune_on(clock, make, num_workers=(4, 8, 16), prefetch_factor=(2,))
    assert chosen(result) == (8, 2)
    assert result.reason.endswith(". 16 workers, prefetch 2: raised OSError: no memory")


def test_settings_take_turns_in_every_round_and_every_trial_is_told(sweep):
    told: list[Any] = []
    options = {"num_workers": (4, 8), "prefetch_factor": (2, 4)}
    result = sweep(WAITS, **options, on_trial=told.append)
    turns: dict[int, list[Any]] = {}
    for trial in result.trials:
        turns.setdefault(trial.round, []).append(trial.setting)
    assert all(len(set(turn)) == len(turn) for turn in turns.values())
    assert len({turn[0] for turn in turns.values()}) > 1
    assert tuple(told) == result.trials
    assert sweep(WAITS, **options).to_dict() == result.to_dict()


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_short_iterables_are_begun_again(sweep, length):
    machine = replace(CORES, length=length)
    result = sweep(machine, budget=30.0)
    assert result.rate > 0
    assert result.seconds <= 30 * 1.2
    # Of a pass that ends before all workers have something to do, less than two cores' worth.
    assert chosen(result) in [(0, None), (1, 2)] if length == 1 else result.num_workers >= 1
    assert result.rate <= 42


def test_an_iterator_that_can_be_gone_through_once_or_a_list_is_enough():
    clock = Clock()

    def make(num_workers, prefetch_factor):
        for number in range(30):
            clock.sleep(0.1 / max(1, num_workers))
            yield number

    result = tune_on(clock, make, num_workers=(1, 2))
    assert chosen(result) == (2, 2)
    assert result.rate == pytest.approx(20)
    assert tune_workers(lambda **_: [1, 2, 3], num_workers=(0,), budget=300.0).rate > 0


def test_where_the_loader_raises_the_setting_is_dropped_and_the_sweep_goes_on():
    clock = Clock()

    def make(num_workers, prefetch_factor):
        if num_workers == 1:
            raise ValueError("not one")
        given = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
        return batches(iter(Loader(CORES, clock, **given)), 7 if num_workers == 4 else None)

    def batches(made, number):
        yield from itertools.islice(made, number)
        raise RuntimeError("worker died")

    result = tune_on(clock, make)
    assert chosen(result) == (2, 2)
    assert row(result, 1).out == "raised ValueError: not one"
    assert row(result, 4).out == "raised RuntimeError: worker died"
    assert row(result, 4).rate is None


def test_where_no_setting_is_left_the_error_says_why(sweep):
    def make(**_):
        raise OSError("no such disk")

    why = "no setting is left: no workers raised OSError: no such disk"
    with pytest.raises(datapipe.PlanError, match=why) as error:
        tune_on(Clock(), make)
    assert isinstance(error.value.__cause__, OSError)
    with pytest.raises(datapipe.PlanError, match="no workers yields no batch at all"):
        tune_on(Clock(), lambda **_: [])
    with pytest.raises(datapipe.PlanError, match="no workers took 10 B, more than max_memory, 5 B"):
        sweep(CORES, meter=lambda: FakeMeter(lambda: 10), max_memory=5)


@pytest.mark.parametrize("budget", [1.0, 3.0, 10.0])
def test_a_small_budget_is_kept_and_what_was_not_tried_is_said(sweep, budget):
    result = sweep(replace(CORES, startup=0.5), budget=budget)
    assert result.seconds <= 1.2 * budget
    if budget < 5:
        assert "Not compared for lack of time: " in result.reason
        assert not result.settled
    untried = [tried for tried in result.settings if tried.rate is None]
    assert all(str(tried.setting) in result.reason for tried in untried)


def test_a_budget_that_is_too_small_for_anything_is_an_error(sweep):
    with pytest.raises(datapipe.PlanError, match=r"budget 0\.1 s: after .* give more seconds"):
        sweep(replace(CORES, work=3.0), num_workers=(2,), budget=0.1)


class FakeMeter(NoMeter):
    """Stands in for a `UsageMeter` on a virtual clock, where both cores are busy."""

    def __init__(self, memory):
        self._memory = memory

    @property
    def memory(self):
        return self._memory()

    def stop(self):
        return replace(super().stop(), cpu=1.0, cores=2, others=0.9, gil=0.0, memory=self.memory)


def test_a_setting_over_the_memory_limit_is_stopped_and_larger_ones_are_not_tried(sweep):
    made: list[Loader] = []

    def memory(loader):
        return 100 + 10 * loader.ahead

    result = sweep(WAITS, made, meter=lambda: FakeMeter(lambda: memory(made[-1])), max_memory=190)
    assert chosen(result) == (4, 2)
    assert row(result, 4, 4).out.startswith(("took", "needs at least the memory of"))
    assert row(result, 8, 4).out.startswith("needs at least the memory of")
    assert row(result, 4).memory == 180
    over = [(loader.workers, loader.ahead) for loader in made if memory(loader) > 190]
    assert len(over) == len(set(over))


def test_what_holds_the_loader_back_is_said(sweep):
    result = sweep(CORES, meter=lambda: FakeMeter(lambda: 10))
    assert result.limit.resource == "cpu"
    assert "More than 2 workers would not help: all 2 cores are busy" in result.reason
    assert sweep(CORES).limit is None


def test_variants_are_tried_and_the_first_of_equals_is_taken():
    """Their values may be of any type."""
    clock, variants = Clock(), [{"meta": names} for names in (["key", "text"], ["key"], ["id"])]

    def make(num_workers, prefetch_factor, meta):
        machine = replace(WAITS, work=0.1) if "text" in meta else WAITS
        return Loader(machine, clock, num_workers=num_workers, prefetch_factor=prefetch_factor)

    result = tune_on(
        clock,
        make,
        num_workers=(1, 2),
        prefetch_factor=(2,),
        variants=variants,
        budget=120.0,
    )
    assert (chosen(result), result.variant) == ((2, 2), {"meta": ["key"]})
    assert len(result.settings) == 6


def test_a_step_that_is_given_is_called_with_batches_and_measured():
    clock = Clock()
    seen: list[int] = []

    def train(batch):
        seen.append(batch)
        clock.sleep(0.02)

    result = tune_on(clock, lambda **given: Loader(WAITS, clock, **given), train=train)
    assert chosen(result) == (4, 2)
    assert result.step_time == pytest.approx(0.02)
    assert len(seen) > 40


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_arguments_are_refused(case):
    (name, value), (_, message) = case.items()
    value = tuple(value) if isinstance(value, list) else value
    said = re.escape(f"{name} {value!r}") + ":? " + message
    with pytest.raises(datapipe.PlanError, match=said):
        tune_workers(lambda **_: [1], **{name: value})


def test_a_step_that_is_given_twice_and_what_makes_no_loaders_are_refused():
    with pytest.raises(datapipe.PlanError, match="step_time and train: give one"):
        tune_workers(lambda **_: [1], step_time=1, train=print)
    with pytest.raises(datapipe.PlanError, match="give a function of num_workers"):
        tune_workers([1, 2, 3])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ({"valid": torch.tensor([True, False, True])}, 2),
        ({"input_ids": torch.zeros(1, 9), "cu_seq_lens_q": torch.zeros(4)}, 0),
        ({"images_per_sample": torch.zeros(5)}, 5),
        ({"input_ids": torch.zeros(3, 9)}, 3),
        ({"x": torch.tensor(1.0), "y": torch.zeros(6, 2)}, 6),
        ([torch.zeros(7, 2), torch.zeros(7)], 7),
        ((["a", "b"], torch.zeros(2)), 2),
        (torch.zeros(8, 3), 8),
        (torch.tensor(1.0), 0),
        (17, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_samples_of_a_batch_are_counted_where_it_says(batch, samples):
    assert samples_of(batch) == samples


def test_a_preference_pair_is_one_sample(tmp_path, tokenizer):
    shards = pack(tmp_path, [pair("formatted", number) for number in range(6)])
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=6, pairs=True)
    given = {"image": datapipe.ImageSpec(size=28), "text": text, "batch_size": 3}

    class Ticking(Clock):
        def __call__(self):
            self.sleep(0.5)
            return self.now

    def make(**workers):
        return datapipe.make_loader(shards, **given, num_workers=workers["num_workers"])

    result = tune_on(Ticking(), make, num_workers=(0,))
    assert result.samples_rate == pytest.approx(3 * result.rate)
