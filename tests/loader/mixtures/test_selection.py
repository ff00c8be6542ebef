"""Samples of a mixture that are left out."""

import json

import pytest

from datapipe import PlanError
from tests.case_files import cases

from ...campaigns import rare
from .datasets import draws, of


def test_samples_are_excluded_by_dataset_and_key(make, mixture):
    whole = draws(make(epochs=2, image=None))
    key = "000000003"
    for name in ("chats", "drawings"):
        left = draws(make(epochs=2, image=None, exclude=f"{name}:{key}"))
        assert left == [draw for draw in whole if draw != (name, key)]
        assert len(left) < len(whole)
    several = [f"{name}:{key}" for name in ("chats", "captions", "drawings")]
    left = draws(make(epochs=2, image=None, exclude=several))
    assert left == [draw for draw in whole if draw[1] != key]
    only = "000000020"  # a key that one dataset has
    left = draws(make(epochs=2, image=None, exclude=[only, several[0]]))
    assert left == [draw for draw in whole if draw not in {("chats", only), ("chats", key)}]


@pytest.mark.parametrize(("exclude", "told"), cases("loader/excluded"))
def test_a_key_that_may_be_of_several_datasets_is_refused(make, exclude, told):
    with pytest.raises(PlanError, match=told):
        make(exclude=json.loads(exclude))


def test_numbers_and_steps_are_excluded(make):
    loader = make()
    whole = [draws([batch]) for batch in loader]
    numbers = {
        draw: number
        for batch in make()
        for draw, number in zip(draws([batch]), batch["sample"].tolist(), strict=False)
    }
    assert sorted(set(numbers.values())) == list(range(52))
    number = numbers["drawings", "000000001"]
    left = draws(make(exclude=[number]))
    assert left == [draw for step in whole for draw in step if numbers[draw] != number]
    view = loader.plan.step(2, epoch=0)
    assert sorted(zip(view.ranks[0].datasets, view.ranks[0].keys, strict=True)) == sorted(whole[2])
    left = draws(make(exclude=[view]))
    assert left == [draw for n, step in enumerate(whole) if n != 2 for draw in step]
    with pytest.raises(PlanError, match="seen in another plan"):
        make(exclude=[view], seed=4)


def test_conditions_of_the_loader_and_of_datasets_hold_together(make, mixture):
    given = mixture(chats={"where": "images > 0"}, captions={"where": "width > 42"})
    found = set(draws(make(given, where="images < 2", epochs=2)))
    alone = {
        name: set(draws(make(mixture(parts=(name,)), where=condition, image=None)))
        for name, condition in {
            "chats": "images > 0 and images < 2",
            "captions": "width > 42 and images < 2",
            "drawings": "images < 2",
            "one": "images < 2",
        }.items()
    }
    assert found == set().union(*alone.values())
    assert len(alone["chats"]) == 15
    either = mixture(parts=("chats",), chats={"where": "images == 0 or images == 2"})
    assert {int(key) % 4 for _, key in draws(make(either, where="images > 0"))} == {2}
    with pytest.raises(PlanError, match="chats"):
        make(mixture(chats={"where": "images > 9"}))
    with pytest.raises(PlanError, match=r'"drawings".*no column .colour.'):
        make(mixture(drawings={"where": "colour > 9"}))


@pytest.mark.parametrize(("limit", "count"), [(10, 10), ("5%", 1), rare(10**6, 29)])
def test_a_limit_keeps_the_same_samples_in_every_epoch(make, mixture, limit, count):
    def kept(most, **options):
        given = mixture(parts=("chats", "captions"), chats={"limit": most} if most else {})
        return set(of("chats", draws(make(given, image=None, **options))))

    found = kept(limit)
    assert len(found) == count
    assert found == kept(limit, seed=9, epochs=3) == kept(limit, pack=100, epochs=2)
    if count == 10:
        assert found != set(sorted(kept(None))[:count])  # of the whole dataset, and not its begin
        assert found < kept(14)  # more samples with a larger limit, and not others
