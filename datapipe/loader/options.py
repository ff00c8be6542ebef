"""How a loader executes its plan. None of these changes the order of samples."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.errors import PlanError
from datapipe.loader.batch import OnError
from datapipe.plan.plan import check_ranks

BATCH_KEYS = frozenset({"pixel_values", "images_per_sample", "text", "key", "valid"})
"""Keys that a batch may have by itself."""


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of `make_loader`, which describes them, once defaults are filled in.

    Raises:
        PlanError: a value is impossible, or two contradict each other.
    """

    batch_size: int
    meta: tuple[str, ...]
    num_workers: int
    prefetch_factor: int
    drop_last: bool
    on_error: OnError
    max_skipped: int | None
    rank: int
    world_size: int
    stall_warning: float

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise PlanError(f"batch_size {self.batch_size}: at least 1 sample is needed")
        if self.prefetch_factor < 1:
            raise PlanError(f"prefetch_factor {self.prefetch_factor}: at least 1 step is needed")
        if self.num_workers < 0:
            raise PlanError(
                f"num_workers {self.num_workers}: use 0 for none, or None for the default"
            )
        if self.stall_warning <= 0:
            raise PlanError(f"stall_warning {self.stall_warning}: seconds above 0 are needed")
        if self.on_error not in ("raise", "skip"):
            raise PlanError(f"on_error {self.on_error!r} is neither 'raise' nor 'skip'")
        if taken := BATCH_KEYS & set(self.meta):
            raise PlanError(f"meta names {sorted(taken)} are keys of every batch already")
        check_ranks(self.rank, self.world_size)

    @property
    def share(self) -> int:
        """Units that all ranks together take in a step."""
        return self.batch_size * self.world_size
