"""Samples of a dataset that take part in a plan, and their sizes in a batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.errors import PlanError
from datapipe.index.columns import Columns
from datapipe.index.dataset import Dataset
from datapipe.index.files.random_read import gather, gather_counts
from datapipe.index.tokens.columns import TokenColumns
from datapipe.index.where import parse_where, select_where
from datapipe.index.where.values import ExtraColumns
from datapipe.loader.schedule.image_token_counts import ImageSizes, frames_of, image_sizes
from datapipe.loader.schedule.token_counts import count_tokens
from datapipe.plan.lengths import planned
from datapipe.plan.options import PlanOptions
from datapipe.plan.ragged import edges, places, totals
from datapipe.plan.selection import Selection
from datapipe.plan.units import Sizes
from datapipe.report.table import counted
from datapipe.store.record_fields import where_columns
from datapipe.text.encode import TextEncoder
from datapipe.text.frames import Frames
from datapipe.text.spec import TextSpec, with_image_tokens

if TYPE_CHECKING:  # imports torch, which planning does not need
    from datapipe.decode.transform import ImageTransform

logger = logging.getLogger(__name__)

_MOST_UNLABELLED = 0.01  # of the samples, without a warning
# Reasons why samples have no label
_UNLABELLED = (
    "lose their answers to the limit of tokens (give a larger max_length, pack or max_tokens, or "
    "overlong='drop')",
    'have no text (where="label_tokens > 0" leaves them out)',
    "have text that teaches nothing: no turn is the assistant's, its answers are empty or marked "
    'as not learnt, or the template leaves them out (where="label_tokens > 0" leaves such samples '
    "out)",
)
# Runs of neighbours, since single samples of a large dataset would each cost a read.
_RUNS, _RUN = 64, 64


@dataclass(frozen=True, kw_only=True)
class TextRule:
    """Rule by which samples get tokens, with a tokenizer."""

    spec: TextSpec
    encoder: TextEncoder
    images: ImageSizes
    limit: int | None  # tokens that a sample may have, images included

    @property
    def identity(self) -> dict[str, Any]:
        """All that the number of tokens of each sample depends on."""
        return {
            "tokenizer_and_template": self.encoder.digest[:16],
            "image_tokens": self.images.name,
            "max_length": self.limit,
            # Dropped samples show in the selection.
            "truncate": self.spec.overlong == "truncate",
        }

    def frames(self, columns: Columns, samples: Int64) -> Frames | None:
        """Return the frames of videos among all images of samples, int64 [n]; None without any."""
        return None if self.images.videos is None else frames_of(columns, samples)


def text_rule(
    text: TextSpec,
    plan: PlanOptions,
    *,
    pad_to: int | None,
    image: ImageTransform | None,
    make_encoder: Callable[[TextSpec], TextEncoder],
) -> TextRule:
    """Return the rule of a `TextSpec`, or `PlanError`. No sample has more than `pad_to` tokens."""
    text = with_image_tokens(text, None if image is None else image.spec)
    limits = [limit for limit in (text.max_length, plan.pack, plan.max_tokens, pad_to) if limit]
    encoder = make_encoder(text)
    return TextRule(
        images=image_sizes(text, image, encoder),
        spec=text,
        encoder=encoder,
        limit=min(limits) if limits else None,
    )


@dataclass(frozen=True, kw_only=True)
class TextSizes(TextRule):
    """Sizes of the samples of a dataset with a tokenizer."""

    dataset: Dataset
    columns: TokenColumns  # tokens of the texts alone

    def where_columns(self) -> ExtraColumns:
        """Return the columns of tokens, by their names in `where=`."""
        columns = self.columns
        return {
            "text_tokens": lambda span: columns.text_tokens[span],
            "label_tokens": lambda span: columns.label_tokens[span],
            "tokens": lambda span: self.measure(_numbers(span)).tokens,
            "placeholders": lambda span: self.measure(_numbers(span)).images,
        }

    def measure(self, samples: Int64) -> Sizes:
        """Return the sizes of some samples in a batch, after truncation if that was asked for."""
        columns = self.columns
        text = gather(columns.text_tokens, samples).astype(np.int64)
        images, vision, rows = self._images(samples)
        sizes = Sizes(
            tokens=text + vision,
            labels=gather(columns.label_tokens, samples).astype(np.int64),
            images=images,
            vision=vision,
            rows=rows,
        )
        if self.limit is None or self.spec.overlong != "truncate":
            return sizes
        # A text that cannot be used has no positions of images.
        long = np.flatnonzero((sizes.tokens > self.limit) & (text >= 0))
        if len(long):
            self._cut(sizes, samples, long)
        return sizes

    def _cut(self, sizes: Sizes, samples: Int64, long: Int64) -> None:
        columns, chosen = self.columns, samples[long]
        widths, heights, image_offsets = self.dataset.columns.image_sides(chosen)
        frames = self.frames(self.dataset.columns, chosen)
        per_sample = np.diff(image_offsets)
        counts = self.images.count("tokens", widths, heights, frames, per_sample)
        image_at, _ = places(columns.sample_image_at, chosen)
        labels, label_offsets = places(columns.sample_label, chosen)
        cut = planned(
            columns.text_tokens[chosen].astype(np.int64),
            image_at=columns.image_at[image_at],
            image_counts=counts,
            image_offsets=image_offsets,
            label_start=columns.label_start[labels],
            label_stop=columns.label_stop[labels],
            label_offsets=label_offsets,
            limit=self.limit,
            wrap=self.encoder.image_wrap,
            frames=frames,
            video_wrap=self.encoder.video_wrap,
        )
        sizes.tokens[long] = cut.tokens
        sizes.labels[long] = cut.labels
        sizes.images[long] = cut.images
        sizes.vision[long] = cut.image_tokens
        rows = edges(self.images.count("rows", widths, heights, frames, per_sample))
        sizes.rows[long] = rows[image_offsets[:-1] + cut.images] - rows[image_offsets[:-1]]

    def _images(self, samples: Int64) -> tuple[Int64, Int64, Int64]:
        """Return images of each of some samples, and tokens and rows of all of them: int64 [n]."""
        if isinstance(self.images.tokens, int):
            images = gather_counts(self.dataset.columns.sample_image, samples)
            return images, images * self.images.tokens, images
        widths, heights, offsets = self.dataset.columns.image_sides(samples)
        frames = self.frames(self.dataset.columns, samples)
        images = np.diff(offsets)
        tokens = self.images.count("tokens", widths, heights, frames, images)
        rows = self.images.count("rows", widths, heights, frames, images)
        return images, totals(tokens, offsets), totals(rows, offsets)


@dataclass(frozen=True, kw_only=True)
class SampleSelection:
    """Samples of a dataset that take part in a plan."""

    count: int
    select: Callable[[Int64], Int64] | None  # indices among them to numbers; None if all take part
    shards: Int64  # int64, samples of each shard
    text: TextSizes | None  # sizes of the samples; None without a tokenizer
    identity: dict[str, Any]  # JSON-compatible; goes into every state
    warnings: tuple[str, ...] = ()  # about samples that teach nothing, or are left out


def select_samples(
    dataset: Dataset,
    text: TextRule | None,
    plan: PlanOptions,
    *,
    where: str | None,
    on_error: Literal["raise", "skip"],
    known: Mapping[str, Any] | None = None,
) -> SampleSelection:
    """Select the samples that take part and measure them; count tokens if necessary.

    `known` is the `identity` that was found before with these arguments; None looks for warnings
    too. `PlanError` if no sample takes part, or samples are too long.
    """
    if len(dataset) == 0:
        raise PlanError(f"{dataset.folder} holds no samples")
    sizes, warnings = None, list[str | None]()
    if text is not None:
        columns = count_tokens(dataset, text.encoder)
        sizes = TextSizes(dataset=dataset, columns=columns, **vars(text))
        if known is None:
            warnings += [_refuse_failures(sizes, on_error), _lost_images(sizes)]
    selection = digest = None
    if known is None or known["selection"] is not None:
        selection, digest = _select(dataset, sizes, plan, where)
    shards = dataset.columns.shard_sample
    found = SampleSelection(
        count=len(dataset) if selection is None else selection.count,
        select=None if selection is None else selection.select,
        shards=np.diff(shards if selection is None else selection.rank(shards)),
        text=sizes,
        identity={
            "where": str(parse_where(where)) if where is not None else None,
            "selection": digest,
            "text": sizes.identity if sizes else None,
            **({} if dataset.max_frames is None else {"max_frames": dataset.max_frames}),
        },
    )
    if sizes is not None and known is None and not sizes.spec.prompts:  # which have no labels
        warnings.append(_without_labels(found, dataset.columns))
    return replace(found, warnings=tuple(filter(None, warnings)))


def _refuse_failures(text: TextSizes, on_error: Literal["raise", "skip"]) -> str | None:
    columns = text.columns
    if not columns.failed:
        return None
    first = columns.failures()[0]
    problem = (
        f"{counted(columns.failed, 'sample')} with a text that cannot be used, such as "
        f"{first['key']} of {first['shard']}: {first['reason']}"
    )
    if on_error == "raise":
        raise PlanError(
            f"{problem}; on_error='skip' leaves such samples out, and once they are repaired, "
            f"remove {columns.folder} to have them counted again"
        )
    return f"{problem}; they are left out"


def _lost_images(text: TextSizes) -> str | None:
    """Return a warning if truncation leaves no room for any image, else None."""
    least, limit = text.images.tokens, text.limit
    if text.spec.overlong != "truncate" or limit is None or not isinstance(least, int):
        return None
    if least > limit and (images := int(text.dataset.columns.sample_image[-1])):
        return (
            f"an image has {least} tokens and a sample {limit} at most, so truncation removes all "
            f"{images} images; give a larger limit, or overlong='drop'"
        )
    return None


def _without_labels(selection: SampleSelection, columns: Columns) -> str | None:
    """Return a warning if more than 1 % of the samples that take part have no label, else None.

    Up to 4,096 samples are looked at, evenly spread over a larger dataset.
    """
    text, count = selection.text, selection.count
    assert text is not None
    samples = _spread_out(count, selection.select)
    without = samples[text.measure(samples).labels == 0]
    if len(without) <= _MOST_UNLABELLED * len(samples):
        return None
    cut = gather(text.columns.label_tokens, without) > 0
    empty = ~cut & (gather(columns.text_bytes, without) == 0)
    counts = (
        f"{int(chosen.sum()):,}, such as {columns.key(int(without[chosen][0]))}, {reason}"
        for chosen, reason in zip((cut, empty, ~cut & ~empty), _UNLABELLED, strict=True)
        if chosen.any()
    )
    spread = "" if len(samples) == count else f" (spread over all {count:,})"
    return (
        f"{100 * len(without) / len(samples):.1f}% of {len(samples):,} samples{spread} have no "
        f"label, so the model learns nothing from them: {'; '.join(counts)}"
    )


def _spread_out(count: int, select: Callable[[Int64], Int64] | None) -> Int64:
    if count <= _RUNS * _RUN:
        indices = np.arange(count, dtype=np.int64)
    else:
        starts = np.linspace(0, count - _RUN, _RUNS).astype(np.int64)
        indices = (starts[:, None] + np.arange(_RUN)).ravel()
    return indices if select is None else select(indices)


def _select(
    dataset: Dataset, text: TextSizes | None, plan: PlanOptions, where: str | None
) -> tuple[Selection | None, str | None]:
    """Return the samples that take part and their digest; None if all do."""
    if text is None and where is None:
        return None, None
    # The cache key includes `overlong`: a selection made for "drop" must not serve "raise".
    asked = [text.identity, text.spec.overlong] if text else None
    facts = [asked, plan.max_images, plan.max_patches]
    facts += [] if dataset.max_frames is None else [dataset.max_frames]
    identity = json.dumps(facts, sort_keys=True)
    condition = parse_where(where) if where is not None else None
    selected = select_where(
        condition,
        dataset.columns,
        where_columns(dataset, condition, text.where_columns() if text else {}),
        keep=partial(_keep, text, plan) if text else None,
        folder=dataset.home / "where",
        fingerprint=dataset.manifest.fingerprint,
        identity=identity,
    )
    if selected.kept == len(dataset):  # whose bitmap need not be read
        return None, None
    logger.info("%d of %d samples take part", selected.kept, len(dataset))
    return Selection(selected.bits, len(dataset)), selected.digest[:16]


def _keep(text: TextSizes, plan: PlanOptions, span: slice, chosen: Bools) -> Bools:
    """Return the chosen samples that fit; PlanError if `overlong` does not drop the others."""
    numbers = _numbers(span)
    sizes = text.measure(numbers)
    out = unfit(text, plan, numbers, sizes)
    usable = chosen & ~out["unusable"]
    large = usable & (out["overlong"] | out["images"])
    if text.spec.overlong != "drop" and large.any():
        first = int(np.flatnonzero(large)[0])
        limits = {"tokens": text.limit, "images": plan.max_images, "patches": plan.max_patches}
        most = " or ".join(f"{limit:,} {name}" for name, limit in limits.items() if limit)
        helps = text.spec.overlong == "raise" and not (usable & out["images"]).any()
        cut = "'truncate' to cut their tokens, " if helps else ""
        verb = "does" if large.sum() == 1 else "do"
        raise PlanError(
            f"{int(large.sum()):,} of the first {span.stop:,} samples {verb} not fit, such "
            f"as {text.dataset.columns.key(int(numbers[first]))} with {sizes.tokens[first]:,} "
            f"tokens and {counted(int(sizes.images[first]), 'image')}, more than {most}; give "
            f"TextSpec(overlong='drop') to leave such samples out, {cut}or a larger limit"
        )
    return usable & ~large & ~out["empty"]


def unfit(text: TextSizes, plan: PlanOptions, numbers: Int64, sizes: Sizes) -> dict[str, Bools]:
    """Return the samples that take no part, by reason: bool [n] each.

    "unusable" is a text that cannot be used, "overlong" more tokens than the limit, "images" more
    images or patches than a unit may have, and "empty" no token. `numbers` is int64 [n].
    """

    def over(values: Int64, limit: int | None) -> Bools:
        return np.zeros(len(values), bool) if limit is None else values > limit

    return {
        "unusable": gather(text.columns.text_tokens, numbers) < 0,
        "overlong": over(sizes.tokens, text.limit),
        "images": over(sizes.images, plan.max_images) | over(sizes.rows, plan.max_patches),
        "empty": sizes.tokens <= 0,
    }


def _numbers(span: slice) -> Int64:
    return np.arange(span.start, span.stop, dtype=np.int64)
