"""Options of a mixture as people write them, such as `70%`, `2x` and `100k steps`."""

from __future__ import annotations

from typing import Annotated

from datapipe.declared import Refused, Say, check_value
from datapipe.errors import PlanError
from datapipe.mixture.spec import Epoch, Repeat, Weight
from datapipe.quantities import take_amount, take_percent, take_times


def _weight(value: float | str) -> float:
    return _checked(take_percent(value) if isinstance(value, str) else value, Weight)


def _repeat(value: float | str) -> float:
    return _checked(take_times(value) if isinstance(value, str) else value, Repeat)


def _checked(number: object, declared: object) -> float:
    try:
        return check_value("", number, declared, PlanError)  # type: ignore[no-any-return]
    except PlanError:
        raise Refused from None


def _epoch(value: int | str) -> Epoch:
    if value == "longest" or value == "shortest":
        return "longest" if value == "longest" else "shortest"
    amount = take_amount(value)
    if amount.unit == "steps" or amount.number < 1:
        raise Refused
    return amount


WrittenWeight = Annotated[
    float | str, _weight, Say("a weight such as 0.7 or '70%': 0, or from 1e-9 to 1e9")
]
WrittenRepeat = Annotated[
    float | str, _repeat, Say("a number of times such as 2, '2x' or '0.5x', from 1e-9 to 1e9")
]
ShortForm = Annotated[
    float | str,
    _weight,
    Say("a weight such as 0.7 or '70%', a repeat such as '2x', or a mapping of options"),
]
WrittenEpoch = Annotated[
    int | str,
    _epoch,
    Say("'longest', 'shortest', or an amount such as '2M samples' or '4B tokens'"),
]
WrittenAmount = Annotated[
    int | str,
    take_amount,
    Say("an amount such as '100k steps', '2M samples' or '1.5B tokens', or a number of samples"),
]
