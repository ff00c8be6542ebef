"""Arguments checked by their declared types."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from datapipe.declared import Count, Say, Share, Within, check_fields, checked
from datapipe.errors import PackError, PlanError


@checked(PlanError)
def call(
    count: Count | None = None,
    *,
    flag: bool = False,
    share: Share = 0.0,
    path: str | os.PathLike[str] = ".",
    word: Literal["auto", "never"] | int = "auto",
    names: str | Sequence[str] = (),
    size: Annotated[tuple[int, int], Say("(height, width)")] | None = None,
    options: Mapping[str, Any] | None = None,
    act: Callable[..., Any] = print,
    each: Iterable[Any] = (),
) -> dict[str, Any]:
    return locals()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count 0: give an integer from 1 or None"),
        ({"count": True}, "count True: give an integer"),
        ({"count": 10**30}, "count 1000.*: give an integer that fits into 64 bits"),
        ({"count": np.array([3])}, "count array.*: give an integer"),
        ({"count": torch.tensor(True)}, "count tensor.*: give an integer"),
        ({"flag": 1}, "flag 1: give True or False"),
        ({"share": float("nan")}, "share nan: give a number from 0 to 1"),
        ({"share": True}, "share True: give a number from 0 to 1"),
        ({"path": 5}, "path 5: give a path"),
        ({"path": b"folder"}, "path b'folder': give a path"),
        ({"path": "a\0b"}, "without NUL"),
        ({"path": "a" * 5000}, "path 'aaaa.*: give a path of at most 4,096 bytes"),
        ({"word": "autp"}, "word 'autp': give 'auto', 'never' or an integer"),
        ({"names": ["a", 1]}, r"names \['a', 1\]: give a string or a list, each a string"),
        ({"names": np.array("a")}, "give a string or a list"),
        ({"size": (1, 2, 3)}, r"size \(1, 2, 3\): give \(height, width\) or None"),
        ({"options": {1: 2}}, "give a dict with names as keys or None"),
        ({"act": 1}, "act 1: give a function"),
        ({"each": 1}, "each 1: give several in a list"),
    ],
)
def test_a_value_of_another_type_is_refused(given, message):
    with pytest.raises(PlanError, match=message) as error:
        call(**given)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("three", [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_integers_of_any_kind_become_pythons(three):
    assert type(call(three)["count"]) is int
    assert call(count=three, size=[three, 4]) | {"each": ()} == call(3, size=(3, 4))
    assert type(call(word=three)["word"]) is int


def test_what_was_right_is_passed_on_as_it_is():
    path, each = Path("a"), iter([1])
    given = call(size=(1, 2), path=path, each=each)
    assert (given["size"], given["path"] is path, given["each"] is each) == ((1, 2), True, True)
    assert call(flag=np.bool_(True))["flag"] is True
    shards = "data/train-{000000..000099}.tar::" * 200
    assert call(path=shards)["path"] is shards


def test_unknown_and_missing_names_are_pythons_errors():
    with pytest.raises(TypeError, match="unexpected keyword"):
        call(other=1)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Options:
    count: Annotated[int, Within(1, 5)] = 1


def test_fields_are_checked_and_set():
    options = Options(np.int64(4))  # type: ignore[arg-type]
    check_fields(options, PackError)
    assert type(options.count) is int
    with pytest.raises(PackError, match="cache count 6: give an integer from 1 to 5"):
        check_fields(Options(6), PackError, "cache {}".format)
