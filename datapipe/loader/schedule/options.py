"""Options of a loader: those of its plan, and those that do not change the order of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from datapipe.cpus import WorkerCount
from datapipe.declared import Count, check_fields
from datapipe.errors import PlanError
from datapipe.loader.specs import BatchSpec, PackSpec, RunSpec, WorkerSpec
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Share, Step
from datapipe.text.spec import TextSpec

IMAGE_KEYS = (
    *("pixel_values", "image_grid_thw", "image_sizes", "image_position_ids", "batch_num_images"),
    *("pixel_attention_mask", "spatial_shapes", "image_merge_sizes"),
    *("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
)
"""Keys of a batch that describe its images and videos, in the order of these."""

TYPE_KEYS = ("token_type_ids", "mm_token_type_ids")
"""Keys under which a batch may say which tokens stand for images; see `TextSpec.token_types`."""

BATCH_KEYS = frozenset(
    {
        *("input_ids", "labels", "attention_mask", "position_ids", "use_cache"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"),
        *IMAGE_KEYS,
        *TYPE_KEYS,
    }
)
"""Keys that a batch may have without `meta`."""

OnError = Literal["raise", "skip"]

DEFAULT_PREFETCH = 2
"""Steps that are prepared ahead by default."""

_MOST_UNITS = 2**31 - 1
_TOKENS_PER_SAMPLE = 16  # with constant shapes, a pack has at most one sample in so many tokens
_BUCKETS = 64  # by default, with a token budget
_GROUP = 64  # by default; launches whose steps have at most as many units get one order


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


def resolve_plan(
    text: TextSpec | None,
    pack: PackSpec | None,
    batch: BatchSpec,
    *,
    group: int | None,
    world_size: int,
    buckets: int | Sequence[int] | None,
    **options: Any,
) -> tuple[PlanOptions, int]:
    """Return the options of the plan, and the units that a rank takes in a step, or `PlanError`.

    The arguments are those of `make_loader`.
    """
    _check_shapes(text, pack, batch, buckets=buckets, max_tokens=options["max_tokens"])
    _check_rows(text, pack, batch)
    if text is not None and text.pairs and options["max_tokens"] is not None:
        if options["max_tokens"] < 2:
            raise PlanError(
                f"max_tokens={options['max_tokens']}: a pair has two rows of at least one token"
            )
        options["max_tokens"] //= 2  # for the chosen answers; the rejected have as many
    if options["max_tokens"] is not None and buckets is None:
        buckets = _BUCKETS
    batch_size = batch.batch_size
    plan = PlanOptions(
        buckets=buckets,  # type: ignore[arg-type]
        batch_size=batch_size,
        group=1 if group is None else group,
        **options | (batch if pack is None else pack).plan_options(),
    )
    if plan.unit != "batch":
        plan = replace(plan, batch_size=None)
    if plan.needs_lengths and text is None:
        given = "pack=" if plan.pack else "max_tokens=" if plan.max_tokens else "buckets="
        given = f"group={group}" if plan.unit == "sample" else given
        raise PlanError(
            f"{given} needs the number of tokens of every sample; give "
            "text=TextSpec(tokenizer=..., template=...)"
        )
    if pack is not None and pack.static_shapes:
        plan = _with_constant_shapes(plan, text)
    units_per_rank = 1
    if plan.unit != "batch" and batch_size is not None:
        units_per_rank = batch_size
    elif plan.unit == "sample":
        raise PlanError("give batch_size=, or pack= or max_tokens= with text=")
    if group is None and plan.unit != "sample" and plan.shuffle:
        plan = replace(plan, group=max(_GROUP, units_per_rank * world_size))
    return plan, units_per_rank


def _check_shapes(
    text: TextSpec | None, pack: PackSpec | None, batch: BatchSpec, **others: Any
) -> None:
    """Raise PlanError if constant shapes of padded batches would do nothing."""
    shapes = {name: value for name, value in vars(batch).items() if name != "batch_size"}
    given = {name: value for name, value in shapes.items() if value != getattr(BatchSpec, name)}
    if not given:
        return
    said = ", ".join(f"{name}={value}" for name, value in given.items())
    if text is None:
        raise PlanError(f"{said}: only batches of tokens are padded; give text=TextSpec(...)")
    if pack is not None:
        raise PlanError(
            f"{said}: packs are not padded; leave it out, or give PackSpec(static_shapes=True, "
            "multiple_of=...)"
        )
    if others["max_tokens"] is not None:
        raise PlanError(
            f"{said}: the number of samples of a batch varies with max_tokens="
            f"{others['max_tokens']}, so its shape does too; give batch_size= instead"
        )
    if batch.pad_to is not None and others["buckets"] is not None:
        raise PlanError(
            f"pad_to={batch.pad_to}: buckets={others['buckets']} put samples of similar length "
            "together, which saves nothing if all are padded to one length; leave one out, or give "
            "multiple_of="
        )


def _check_rows(text: TextSpec | None, pack: PackSpec | None, batch: BatchSpec) -> None:
    """Raise PlanError if pairs or prompts are to be packed, or images of pairs to be filled up."""
    if text is None or not (text.pairs or text.prompts):
        return
    name = "pairs" if text.pairs else "prompts"
    if pack is not None:
        why = "the loss compares rows" if text.pairs else "models answer rows"
        raise PlanError(
            f"pack={pack.tokens} with TextSpec({name}=True): {why}, and a pack is one row; give "
            "batch_size= or max_tokens=, with buckets= for less padding"
        )
    if text.pairs and batch.sample_rows is not None:
        raise PlanError(
            "sample_images= and sample_patches= fill up the rows of pixel_values after the last "
            "image, and TextSpec(pairs=True) repeats all images for the rejected answers, after "
            "the padding; leave it out"
        )


def _with_constant_shapes(plan: PlanOptions, text: TextSpec | None) -> PlanOptions:
    assert plan.pack is not None
    samples = plan.max_samples or max(1, plan.pack // _TOKENS_PER_SAMPLE)
    images = plan.max_images
    if images is None and plan.max_patches is None:
        if text is None or not isinstance(text.image_tokens, int):
            raise PlanError(
                "static_shapes needs max_patches= (or max_images=) in PackSpec where the number of "
                "tokens of an image varies"
            )
        images = plan.pack // text.image_tokens
        if not images:
            raise PlanError(
                f"an image has {text.image_tokens} tokens and a pack {plan.pack}, so none fits; "
                "give a larger pack, or max_images= where no sample has an image"
            )
    return replace(plan, max_samples=samples, max_images=images)
