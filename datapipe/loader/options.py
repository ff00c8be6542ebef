"""How a loader executes its plan. None of these changes the order of samples."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from datapipe.errors import PlanError
from datapipe.loader.batch import OnError
from datapipe.plan.plan import check_ranks

BATCH_KEYS = frozenset({"pixel_values", "images_per_sample", "text", "key", "valid"})
"""Keys that a batch may have by itself."""


def as_int(name: str, value: Any) -> int:
    """An integer of any kind as Python's.

    Raises:
        PlanError: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise PlanError(f"{name} {value!r} is no integer") from None


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of `make_loader`, which describes them, once defaults are filled in.

    Raises:
        PlanError: a value is impossible, or two contradict each other.
    """

    batch_size: int
    meta: tuple[str, ...]
    verify: bool
    num_workers: int
    prefetch_factor: int
    on_error: OnError
    max_skipped: int | None
    rank: int
    world_size: int
    stall_warning: float

    def __post_init__(self) -> None:
        for name, least, remedy in (
            ("batch_size", 1, "at least 1 sample is needed"),
            ("prefetch_factor", 1, "at least 1 step is needed"),
            ("num_workers", 0, "use 0 for none, or None for the default"),
            ("max_skipped", 0, "use 0 to allow none, or None to allow any number"),
        ):
            value = getattr(self, name)
            if value is None and name == "max_skipped":
                continue
            value = as_int(name, value)
            object.__setattr__(self, name, value)  # NumPy's integers would end up in the state
            if value < least:
                raise PlanError(f"{name} {value}: {remedy}")
        if not (isinstance(self.stall_warning, int | float) and 0 < self.stall_warning < 1e6):
            raise PlanError(f"stall_warning {self.stall_warning!r}: give seconds, above 0")
        if self.on_error not in ("raise", "skip"):
            raise PlanError(f"on_error {self.on_error!r} is neither 'raise' nor 'skip'")
        if taken := BATCH_KEYS & set(self.meta):
            raise PlanError(f"meta names {sorted(taken)} are keys of every batch already")
        for name in ("rank", "world_size"):
            object.__setattr__(self, name, as_int(name, getattr(self, name)))
        check_ranks(self.rank, self.world_size)

    @property
    def share(self) -> int:
        """Units that all ranks together take in a step."""
        return self.batch_size * self.world_size
