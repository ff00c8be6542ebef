"""Samples and steps that `exclude=` leaves out of an unchanged order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from datapipe.declared import Refused, shorten, take_int
from datapipe.errors import PlanError
from datapipe.index.columns import find_keys
from datapipe.loader.schedule.origin import Origin
from datapipe.loader.schedule.plan_view import StepView
from datapipe.plan.steps import Exclusion


def parse_exclude(exclude: Any, origin: Origin) -> tuple[Exclusion, list[tuple[str, Any]]]:
    """Return the samples and ranges of units that `exclude=` names, and the plans of its steps.

    A step is valid only in the plan that it was seen in. `exclude` is one or several of: keys of
    samples (str), in a mixture also "dataset:key", numbers of samples (int), steps as
    `loader.plan.step` returns them, or such steps as dicts with `epoch`, `start` and `stop`. All
    else is a `PlanError`, and so is a key or number that no sample has.
    """
    several = isinstance(exclude, Iterable) and getattr(exclude, "ndim", None) != 0
    if not several or isinstance(exclude, str | bytes | StepView | Mapping):
        exclude = (exclude,)
    keys: list[str] = []
    samples: list[int] = []
    units: dict[int, list[tuple[int, int]]] = {}
    plans: list[tuple[str, Any]] = []
    for item in exclude:
        if isinstance(item, str):
            keys.append(item)
        elif (number := _whole(item)) is not None:
            samples.append(number)
        else:
            epoch, start, stop = _range(item)
            units.setdefault(epoch, []).append((start, stop))
            plan = item.plan if isinstance(item, StepView) else item.get("plan")
            if isinstance(plan, Mapping):
                plans.append((f"units {start} to {stop - 1} of epoch {epoch}", plan))
    samples += _numbers(keys, origin)
    last = int(origin.edges[-1]) - 1
    for number in samples:
        if not 0 <= number <= last:
            raise PlanError(f"exclude names sample {number}, the dataset has samples 0 to {last}")
    return Exclusion(np.unique(np.array(samples, np.int64)), units), plans


def _whole(item: Any) -> int | None:
    try:
        return take_int(item)
    except Refused:
        return None


def _range(item: Any) -> tuple[int, int, int]:
    if isinstance(item, StepView):
        return item.epoch, item.start, item.stop
    try:
        epoch, start, stop = (take_int(item[name]) for name in ("epoch", "start", "stop"))
    except Exception:  # whatever the class of `item` raises
        epoch, start, stop = 0, 0, -1
    if not (epoch >= 0 and 0 <= start <= stop):
        raise PlanError(
            f"exclude {shorten(item)}: give keys or numbers of samples, or steps as "
            "loader.plan.step(n) returns them (or dicts with epoch, start and stop)"
        )
    return epoch, start, stop


def _numbers(keys: list[str], origin: Origin) -> list[int]:
    """Return the samples with some keys, each "dataset:key", or a key that one dataset has."""
    parts = {part.name: number for number, part in enumerate(origin.parts) if part.name}
    anywhere: list[str] = []
    named: dict[int, list[str]] = {}
    for key in keys:
        name = next((name for name in _prefixes(key) if name in parts), None)
        if name is None:
            anywhere.append(key)
        else:
            named.setdefault(parts[name], []).append(key[len(name) + 1 :])
    numbers: list[int] = []
    holders: dict[str, list[str]] = {key: [] for key in anywhere}
    for number in range(len(origin.parts)) if anywhere else sorted(named):
        part, own = origin.parts[number], named.get(number, [])
        found = find_keys(part.data.columns(), [*own, *anywhere])
        if missing := [key for key in own if key not in found]:
            raise PlanError(
                f"exclude names {shorten(f'{part.name}:{missing[0]}')}, but no sample of dataset "
                f"{part.name!r} has this key; loader.plan.step(n) shows keys"
            )
        for key in found.keys() & holders.keys():
            holders[key].append(part.name)
        numbers += [int(origin.edges[number]) + row for row in found.values()]
    for key, held in holders.items():
        if not held:
            where = "" if origin.is_alone else " of any dataset"
            raise PlanError(
                f"exclude names {shorten(key)}, but no sample{where} has this key; "
                "loader.plan.step(n) shows keys"
            )
        if len(held) > 1:
            more = f" and {len(held) - 3} more" if len(held) > 3 else ""
            raise PlanError(
                f"exclude names {shorten(key)}, which is a key in several datasets: "
                f"{', '.join(map(shorten, held[:3]))}{more}; name the dataset too, such as "
                f"{shorten(f'{held[0]}:{key}')}"
            )
    return numbers


def _prefixes(key: str) -> list[str]:
    """Return what is before each colon of a key, the longest first."""
    parts = key.split(":")
    return [":".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
