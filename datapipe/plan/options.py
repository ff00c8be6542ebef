"""Options that the global order depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from datapipe.declared import Count, Refused, Say, check_fields
from datapipe.errors import PlanError

PLAN_VERSION = 3
"""Version of the order; raised whenever equal options would give another order than before."""

BLOCK = 65_536
"""Number of successive samples from which batches and packs are made together."""

_OF_PACKS = ("pack_multiple_of", "pack_window")

Unit = Literal["sample", "batch", "pack"]
Shuffle = bool | Literal["shards"]


def _ascending(buckets: int | tuple[int, ...]) -> int | tuple[int, ...]:
    if isinstance(buckets, tuple) and (not buckets or list(buckets) != sorted({*buckets})):
        raise Refused
    return buckets


Buckets = Annotated[
    Count | tuple[Count, ...],
    _ascending,
    Say("how many, at least 1, or their boundaries in tokens, ascending"),
]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options that the sequence of units depends on, beside the dataset and the epoch.

    Attributes:
        shuffle: True for a new order of all samples each epoch, "shards" for one that mixes a few
            shards at a time, False for the order of the dataset.
        shards_mixed: shards whose samples are mixed, with `shuffle="shards"`.
        seed: seed of the order.
        drop_last: drop a last step that cannot be filled on all ranks.
        pack: capacity of a pack in tokens; units are packs.
        pack_window: most samples that wait for a pack they fit into.
        pack_multiple_of: each sample in a pack is padded to a multiple of this many tokens.
        max_samples: most samples of a pack.
        max_images: most images of a pack; without packs, of a sample.
        max_patches: most rows of `pixel_values` (patches or tiles), likewise.
        max_tokens: tokens of a padded batch, padding included. Units are batches.
        buckets: length buckets: how many, or boundaries in tokens, such as 128,512. Units are
            batches.
        batch_size: samples of a batch, if units are batches.
        group: consecutive units of near-equal cost; 1 for none.
        block: samples that are planned together.

    Raises:
        PlanError: a value is impossible, or two contradict each other.

    Examples:
        >>> PlanOptions(shuffle=True, seed=0, pack=4096).unit
        'pack'
    """

    shuffle: Shuffle
    seed: int
    shards_mixed: Count = 16
    drop_last: bool = False
    pack: Count | None = None
    pack_window: Count = 256
    pack_multiple_of: Count = 1
    max_images: Count | None = None
    max_samples: Count | None = None
    max_patches: Count | None = None
    max_tokens: Count | None = None
    buckets: Buckets | None = None
    batch_size: Count | None = None
    group: Count = 1
    block: Count = BLOCK

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        if self.max_images is not None and self.max_patches is not None:
            raise PlanError(
                f"max_images={self.max_images} and max_patches={self.max_patches} both "
                "limit the images of a pack; give one of them"
            )
        if self.pack is not None:
            for name in ("max_tokens", "buckets"):
                if getattr(self, name) is not None:
                    raise PlanError(
                        f"pack={self.pack} and {name}={getattr(self, name)} contradict each other; "
                        "give one of them"
                    )
            if self.pack % self.pack_multiple_of:
                raise PlanError(
                    f"pack of {self.pack} tokens is not a multiple of multiple_of "
                    f"{self.pack_multiple_of}; give one, so that a full pack can be divided too"
                )
        else:
            if self.buckets is not None and self.batch_size is None and self.max_tokens is None:
                raise PlanError(
                    f"buckets={self.buckets} needs batch_size= or max_tokens=, else a batch has no "
                    "size"
                )
            for name in ("max_samples", *_OF_PACKS):
                if getattr(self, name) != getattr(PlanOptions, name):
                    raise PlanError(
                        f"{name}={getattr(self, name)} needs pack=; leave it out, or give the "
                        "tokens of a pack"
                    )

    @property
    def unit(self) -> Unit:
        """Kind of the units."""
        if self.pack is not None:
            return "pack"
        return "batch" if self.max_tokens is not None or self.buckets is not None else "sample"

    @property
    def needs_lengths(self) -> bool:
        """True if units depend on the number of tokens of each sample."""
        return self.unit != "sample" or self.group > 1

    def to_dict(self) -> dict[str, Any]:
        """Return every option, as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
