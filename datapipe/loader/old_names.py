"""Old names of arguments of `make_loader` that became fields of specs; for one release."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from datapipe.cache.spec import CacheSpec
from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.loader.specs import DeviceSpec, PackSpec, RemoteSpec, RunSpec, WorkerSpec

P = ParamSpec("P")
R = TypeVar("R")

_SPECS: dict[str, type[Any]] = {
    "pack": PackSpec,
    "run": RunSpec,
    "device": DeviceSpec,
    "workers": WorkerSpec,
    "remote": RemoteSpec,
    "cache": CacheSpec,
}
OLD_NAMES = {
    "pack_window": ("pack", "window"),
    "pack_multiple_of": ("pack", "multiple_of"),
    "max_images": ("pack", "max_images"),
    "max_samples": ("pack", "max_samples"),
    "max_patches": ("pack", "max_patches"),
    "static_shapes": ("pack", "static_shapes"),
    "max_steps": ("run", "max_steps"),
    "train_tokens": ("run", "train_tokens"),
    "global_batch_size": ("run", "global_batch_size"),
    "max_skipped": ("run", "max_skipped"),
    "channels_last": ("device", "channels_last"),
    "pin_memory": ("device", "pin_memory"),
    "persistent_workers": ("workers", "persistent"),
    "stall_warning": ("workers", "stall_warning"),
    "read_ahead": ("remote", "read_ahead"),
    "read_concurrency": ("remote", "concurrency"),
    "storage_options": ("remote", "storage_options"),
    "plan_cache": ("cache", "plan"),
}
"""New argument and its field, by old name."""


def accept_old_names(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function take arguments by their old names too, with a `DeprecationWarning`.

    Raises:
        PlanError: an old name is given beside the spec that replaced it.
        TypeError: a name is neither old nor new.
    """
    known = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        old = [name for name in given if name not in known]
        for name in old:
            if name not in OLD_NAMES:
                raise TypeError(_unknown(function.__name__, name, known))
        if old:
            new = ", ".join(f"{name}= is now {new_spelling(name)}" for name in old)
            warnings.warn(
                f"old names of {function.__name__}: {new}; they go with the next release",
                DeprecationWarning,
                stacklevel=2,
            )
            given = _translated(given)  # type: ignore[assignment]
        return function(*args, **given)

    return call


def new_spelling(name: str) -> str:
    """Return the new spelling of an old name: `pack=PackSpec(..., window=...)`."""
    argument, field = OLD_NAMES[name]
    kind = _SPECS[argument]
    others = "" if fields(kind)[0].kw_only else "..., "
    return f"{argument}={kind.__name__}({others}{field}=...)"


def _unknown(function: str, name: str, known: Mapping[str, Any]) -> str:
    spellings = {known_name: f"{known_name}=" for known_name in known}
    spellings |= {old: new_spelling(old) for old in OLD_NAMES}
    spellings |= {field: new_spelling(old) for old, (_, field) in OLD_NAMES.items()}
    close = get_close_matches(name, spellings, n=1)
    hint = f"; did you mean {spellings[close[0]]}?" if close else ""
    return f"{function}() got an unexpected keyword argument {name!r}{hint}"


def _translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their new names."""
    new = {name: value for name, value in given.items() if name not in OLD_NAMES}
    for argument, kind in _SPECS.items():
        old = {name: given[name] for name in OLD_NAMES if name in given}
        old = {name: value for name, value in old.items() if OLD_NAMES[name][0] == argument}
        changes = {
            OLD_NAMES[name][1]: value
            for name, value in old.items()
            if not _is_default(kind, OLD_NAMES[name][1], value)
        }
        if not changes:
            continue
        present, said = new.get(argument), ", ".join(f"{name}={shorten(old[name])}" for name in old)
        if kind is CacheSpec and isinstance(present, CacheSpec) and present.plan is None:
            new[argument] = replace(present, **changes)
        elif isinstance(present, kind):
            raise PlanError(
                f"{said} beside {argument}={kind.__name__}(...), which has a field for it; give "
                f"{', '.join(map(new_spelling, old))} alone"
            )
        elif present is not None:
            new[argument] = kind(present, **changes)
        elif kind is PackSpec:
            raise PlanError(f"{said} needs pack=; leave it out, or give the tokens of a pack")
        else:
            new[argument] = kind(**changes)
    return new


def _is_default(kind: type[Any], field: str, value: Any) -> bool:
    default = next(each.default for each in fields(kind) if each.name == field)
    assert default is not MISSING
    return type(value) is type(default) and bool(value == default)
