"""Options of a loader that do not change the order of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datapipe.cpus import WorkerCount
from datapipe.declared import Count, check_fields
from datapipe.errors import PlanError
from datapipe.loader.specs import BatchSpec, RunSpec, WorkerSpec
from datapipe.plan.steps import Share, Step, check_ranks

BATCH_KEYS = frozenset(
    {
        *("pixel_values", "input_ids", "labels", "attention_mask", "position_ids"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
        *("image_grid_thw", "image_sizes"),
        *("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
    }
)
"""Keys that a batch may have without `meta`."""

OnError = Literal["raise", "skip"]

DEFAULT_PREFETCH = 2
"""Steps that are prepared ahead by default."""

_MOST_UNITS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of `make_loader`, which describes the others, with defaults filled in.

    Attributes:
        units_per_rank: samples, batches or packs that a rank takes in a step.
        verify: compare every member with its checksum.
        on_error: "raise" or "skip", for samples that cannot be decoded.
    """

    units_per_rank: Count
    meta: tuple[str, ...]
    verify: bool
    num_workers: WorkerCount
    prefetch_factor: Count
    on_error: OnError
    rank: int
    world_size: int
    read_ahead: int
    epochs: Count | None
    batch: BatchSpec
    run: RunSpec
    workers: WorkerSpec

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        if taken := BATCH_KEYS & set(self.meta):
            raise PlanError(f"meta names {sorted(taken)}, which are keys of batches already")
        check_ranks(self.rank, self.world_size)
        if self.share > _MOST_UNITS:
            raise PlanError(
                f"{self.units_per_rank} units for each of {self.world_size} ranks are more than "
                f"the {_MOST_UNITS} that a step can have; give a smaller batch_size"
            )
        wanted = self.run.global_batch_size
        if wanted is not None and wanted % self.share:
            raise PlanError(
                f"global_batch_size {wanted} is not a multiple of the {self.share} units that "
                f"{self.world_size} ranks take in a step; give a multiple, such as "
                f"{-(-wanted // self.share) * self.share}, or another batch_size"
            )

    @property
    def in_processes(self) -> bool:
        """True if workers are processes, of this machine or of a cluster."""
        return self.workers.kind != "threads" and self.num_workers > 0

    @property
    def on_cluster(self) -> bool:
        """True if workers are tasks of a Ray cluster."""
        return self.workers.kind == "ray" and self.num_workers > 0

    @property
    def share(self) -> int:
        """Units that all ranks take in a step."""
        return self.units_per_rank * self.world_size

    def deal(self, step: Step, rank: int | None = None) -> Share:
        """Return the units of a rank in a step; None is this one."""
        return step.share(
            units_per_rank=self.units_per_rank,
            rank=self.rank if rank is None else rank,
            world_size=self.world_size,
        )

    @property
    def accumulation_steps(self) -> int:
        """Steps whose gradients make one step of `global_batch_size`."""
        return (self.run.global_batch_size or self.share) // self.share
