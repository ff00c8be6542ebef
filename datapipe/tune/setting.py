"""Settings of a sweep: workers, prefetch, and other arguments of `make`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datapipe.errors import PlanError
from datapipe.report.table import counted


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to make the loader."""

    num_workers: int  # workers; 0 for none
    prefetch_factor: int | None  # steps ahead; None without workers
    # further arguments of `make` with their values, which may be of any type
    variant: Mapping[str, Any] = field(default_factory=dict, compare=False)
    place: int = 0  # number of the variant: its rank among equally good ones

    @property
    def size(self) -> tuple[int, int, int]:
        """Sort key, smallest setting first."""
        return self.num_workers, self.prefetch_factor or 0, self.place

    @property
    def arguments(self) -> dict[str, Any]:
        own = {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor}
        return own | dict(self.variant)

    def covers(self, other: Setting) -> bool:
        """Check that this needs at least the memory of the other: more of the same kind."""
        same = self.place == other.place or 0 in (self.num_workers, other.num_workers)
        more = (a >= b for a, b in zip(self.size[:2], other.size[:2], strict=True))
        return same and all(more)

    def to_dict(self) -> dict[str, Any]:
        return {
            name: value if value is None or isinstance(value, str | int | float) else str(value)
            for name, value in self.arguments.items()
        }

    def __str__(self) -> str:
        words = [counted(self.num_workers, "worker") if self.num_workers else "no workers"]
        if self.prefetch_factor is not None:
            words.append(f"prefetch {self.prefetch_factor}")
        kinds = ("workers", "decoder")
        given = self.variant.items()
        words += [str(value) for name, value in given if name in kinds]
        words += [f"{name}={value}" for name, value in given if name not in kinds]
        return ", ".join(words)


def grid(
    num_workers: Collection[int],
    prefetch_factor: Collection[int],
    variants: Sequence[Mapping[str, Any]] = ({},),
) -> list[Setting]:
    """Combine all values, smallest setting first. Without workers there is one of each kind."""
    if not variants:
        raise PlanError("variants () leave nothing to try; give ({},) for the loader as it is")
    for name, numbers in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
        if not numbers:
            raise PlanError(f"{name} () leaves nothing to try; give numbers such as (0, 2, 4)")
    made: dict[tuple[object, ...], Setting] = {}
    for place, variant in enumerate(variants):
        if twice := sorted({"num_workers", "prefetch_factor"} & {*variant}):
            raise PlanError(
                f"variants {(*variants,)}: give the values of {twice[0]} as {twice[0]}="
            )
        for workers in sorted({*num_workers}):
            for ahead in sorted({*prefetch_factor}) if workers else [None]:
                setting = Setting(
                    num_workers=workers, prefetch_factor=ahead, variant=variant, place=place
                )
                # Without workers, their kind makes no difference.
                key = [pair for pair in variant.items() if workers or pair[0] != "workers"]
                made.setdefault((workers, ahead, repr(key)), setting)
    return sorted(made.values(), key=lambda setting: setting.size)
