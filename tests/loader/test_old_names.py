"""Arguments of `make_loader` by the names that they had before they became fields of specs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe import (
    CacheSpec,
    DeviceSpec,
    Loader,
    PackSpec,
    PlanError,
    RemoteSpec,
    RunSpec,
    TextSpec,
    WorkerSpec,
)
from datapipe.loader.old_names import OLD_NAMES, new_spelling

Make = Callable[..., Loader]
MakeText = Callable[..., TextSpec]

pytestmark = pytest.mark.filterwarnings("default:old names of make_loader:DeprecationWarning")

PACK = {"pack": 256}
SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PACK | {"pack_window": 4}, {"pack": PackSpec(256, window=4)}),
    (PACK | {"pack_multiple_of": 8}, {"pack": PackSpec(256, multiple_of=8)}),
    (PACK | {"max_images": 3}, {"pack": PackSpec(256, max_images=3)}),
    (PACK | {"max_samples": 3}, {"pack": PackSpec(256, max_samples=3)}),
    (PACK | {"max_patches": 3}, {"pack": PackSpec(256, max_patches=3)}),
    (
        PACK | {"static_shapes": True, "max_images": 9},
        {"pack": PackSpec(256, static_shapes=True, max_images=9)},
    ),
    ({"max_steps": 7}, {"run": RunSpec(max_steps=7)}),
    ({"train_tokens": 700}, {"run": RunSpec(train_tokens=700)}),
    ({"global_batch_size": 8}, {"run": RunSpec(global_batch_size=8)}),
    ({"max_skipped": 1}, {"run": RunSpec(max_skipped=1)}),
    (
        {"device": "cpu", "channels_last": True},
        {"device": DeviceSpec("cpu", channels_last=True)},
    ),
    ({"pin_memory": False}, {"device": DeviceSpec(pin_memory=False)}),
    (
        {"workers": "processes", "persistent_workers": False},
        {"workers": WorkerSpec("processes", persistent=False)},
    ),
    ({"stall_warning": 9.0}, {"workers": WorkerSpec(stall_warning=9.0)}),
    ({"read_ahead": "1MB"}, {"remote": RemoteSpec(read_ahead="1MB")}),
    ({"read_concurrency": 3}, {"remote": RemoteSpec(concurrency=3)}),
    ({"storage_options": {"a": 1}}, {"remote": RemoteSpec(storage_options={"a": 1})}),
    ({"plan_cache": "plans"}, {"cache": CacheSpec(plan="plans")}),
    (
        {"plan_cache": "plans", "cache": CacheSpec(memory="1MB")},
        {"cache": CacheSpec(memory="1MB", plan="plans")},
    ),
]


def test_every_old_name_has_a_spelling_here_and_a_field() -> None:
    assert set().union(*(old for old, _ in SPELLINGS)) >= OLD_NAMES.keys()
    parameters = inspect.signature(datapipe.make_loader).parameters
    for name, (argument, _) in OLD_NAMES.items():
        assert name not in parameters
        assert argument in parameters


@pytest.mark.parametrize(("old", "new"), SPELLINGS, ids=lambda options: " ".join(options))
def test_an_old_name_makes_the_loader_of_the_new_one(
    make: Make,
    text: MakeText,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    old: dict[str, Any],
    new: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "cache" in new:  # the folder is one here
        new = {"cache": replace(new["cache"], plan="plans")}
    common = {"text": text(), "num_workers": 0, "image": datapipe.ImageSpec(size=16)}
    renamed = next(name for name in old if name in OLD_NAMES)
    with pytest.warns(DeprecationWarning, match=f"{renamed}= is now ") as warned:
        before = make(**common, **old)
    assert warned[0].filename.startswith(str(Path(__file__).parent))
    after = make(**common, **new)
    assert before.options == after.options
    assert before.components().schedule.plan == after.components().schedule.plan
    assert before.state_dict() == after.state_dict()
    keys = [loader.components().find_tuning_key() for loader in (before, after)]
    assert keys[0] == keys[1]
    assert before.components().schedule.plan_cache == after.components().schedule.plan_cache
    batches = [list(loader) for loader in (before, after)]
    assert [batch.keys() for batch in batches[0]] == [batch.keys() for batch in batches[1]]
    assert len(batches[0]) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pack": PackSpec(200, window=9), "pack_window": 4},
            r"pack_window=4 beside pack=PackSpec\(...\).* give pack=PackSpec\(..., window=...\)",
        ),
        ({"run": RunSpec(), "max_steps": 4}, "max_steps=4 beside run=RunSpec"),
        ({"device": DeviceSpec("cpu"), "channels_last": True}, "channels_last=True beside device="),
        ({"cache": CacheSpec(plan="a"), "plan_cache": "b"}, "plan_cache='b' beside cache="),
        ({"max_patches": 9}, "max_patches=9 needs pack="),
        ({"static_shapes": True}, "static_shapes=True needs pack="),
        ({"max_steps": -1}, "max_steps -1"),
    ],
    ids=str,
)
def test_old_names_that_contradict_are_refused(
    make: Make, options: dict[str, Any], message: str
) -> None:
    with (
        pytest.warns(DeprecationWarning, match="old names"),
        pytest.raises(PlanError, match=message),
    ):
        make(**options)


def test_an_old_name_with_its_default_says_nothing_new(make: Make) -> None:
    defaults: dict[str, Any] = {"max_images": None, "pack_window": 256, "static_shapes": False}
    with pytest.warns(DeprecationWarning, match="old names"):
        loader = make(**defaults, plan_cache=None, max_steps=None)
    assert loader.components().schedule.plan == make().components().schedule.plan


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("epoch", "did you mean epochs=?"),
        ("pack_windw", "did you mean pack=PackSpec(..., window=...)?"),
        ("window", "did you mean pack=PackSpec(..., window=...)?"),
        ("concurrency", "did you mean remote=RemoteSpec(concurrency=...)?"),
        ("xyz", "unexpected keyword argument 'xyz'"),
    ],
)
def test_an_unknown_name_is_a_type_error_with_the_nearest_one(
    make: Make, name: str, hint: str
) -> None:
    with pytest.raises(TypeError) as raised:
        make(**{name: 1})
    assert hint in str(raised.value)


def test_spellings_are_those_of_the_specs() -> None:
    for name, (_, field) in OLD_NAMES.items():
        kind = getattr(datapipe, new_spelling(name).partition("=")[2].partition("(")[0])
        assert field in {each.name for each in fields(kind)}
