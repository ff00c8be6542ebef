"""Images of one batch: their memory, and the work that fills it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Bools, Float64, Int64, UInt8
from datapipe.cache.entries import FACTS
from datapipe.decode.forms.frame import VideoSizes
from datapipe.decode.forms.together import MixedForms
from datapipe.decode.image import Decoded, Encoded, check_indexed
from datapipe.decode.normalize import ImageMoves, Values, array_of, tensor_of
from datapipe.decode.transform import Draw, ImageTransform, Placement
from datapipe.errors import DecodeError
from datapipe.index.columns import Columns
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.decoded_source import DecodedSource
from datapipe.loader.schedule.image_token_counts import frames_of
from datapipe.plan.ragged import edges, grouped, owners, places, ranges, spans
from datapipe.plan.rng import derive
from datapipe.text.frames import Frames

if TYPE_CHECKING:
    from datapipe.decode.dali.decoder import DaliDecoder

GEOMETRY = "image_geometry"
"""Name in `meta` of the placement of each image: float64 [I, 6], see `ImageSlots`."""

_CROPS = 4  # purpose of derived keys


@dataclass(frozen=True, kw_only=True)
class ImageContext:
    """Context that the images of all batches share."""

    transforms: tuple[ImageTransform, ...]  # of each kind of images; `check_together` has passed
    # Kinds of n samples, int64 [n] to int64 [n]; None if all have the first kind
    kinds: Callable[[Int64], Int64] | None = None
    columns: Columns  # of the dataset, with the size of every image
    pool: BufferPool
    seed: int
    rows: int | None = None  # number to which `pixel_values` is filled up
    geometry: bool = False  # batches have the placement of each image
    decoder: DaliDecoder | None = None  # of all images together; None decodes them one by one
    kept: ImageTransform | None = None  # of all images in a cache: uint8, nothing random
    # Sizes of frames of videos, of each kind; None if there are no frames, or all are images
    videos: tuple[VideoSizes | None, ...] | None = None

    def __post_init__(self) -> None:
        # Datasets with images of their own are refused beside DALI.
        assert self.decoder is None or self.kinds is None


def image_draw(seed: int, epoch: int, sample: int, number: int) -> Draw:
    """Return the random numbers of an image, the `number`-th of its sample, in an epoch."""
    return Draw(derive(seed, epoch, _CROPS, sample, number))


def frames_taken(columns: Columns, samples: Int64, images: Int64) -> Frames | None:
    """Return `frames_of` the first images of each sample, `images` of them: int64 [n]."""
    frames = frames_of(columns, samples)
    if frames is None:
        return None
    before = edges(spans(columns.sample_image, samples)[1])[:-1]
    return frames[ranges(before, images)]


class ImageSlots:
    """Images of one batch.

    With `geometry`, `image_geometry` holds scale_x, scale_y, left, top, width and height of each
    image: pixel (x, y) of the original, which is `width` by `height`, is at
    (x * scale_x + left, y * scale_y + top) of the image that the model sees.
    """

    def __init__(
        self,
        context: ImageContext,
        samples: Int64,  # int64 [B], their numbers
        images: Int64,  # int64 [B], number of images of each; of truncated samples the first ones
        drawn_by: Callable[[int], tuple[int, int]],  # pass and number, for random numbers of a slot
        resident: Bools | None = None,  # bool [B], on the device: there are no rows for them
    ) -> None:
        self._context = context
        self._samples = samples
        self._drawn_by = drawn_by
        self.first: Int64 = edges(images)  # [B + 1]; slot s has images `first[s]` to `first[s + 1]`
        self._images = images
        self._kinds = kinds = None if context.kinds is None else context.kinds(samples)
        self._transforms = [context.transforms[0]] * len(samples)
        if kinds is not None:
            self._transforms = [context.transforms[kind] for kind in kinds.tolist()]
        self._fixed = all(each.spec.one_size for each in context.transforms)
        # Images of fixed size are planned alike, whatever their kind.
        self._forms: ImageTransform | MixedForms = context.transforms[0]
        if kinds is not None and not self._fixed:
            self._forms = MixedForms(context.transforms, np.repeat(kinds, images), kinds)
        count = int(self.first[-1])
        # An image of fixed size is one row, whatever its own size, which is then not looked up.
        rows = np.ones(count, np.int64) if self._fixed else self._count_rows()
        self._all_rows = np.arange(count + 1) if self._fixed else edges(rows)  # resident ones too
        self._rows: Int64 = self._all_rows
        if resident is not None:
            self._rows = edges(np.where(np.repeat(resident, images), 0, rows))
        used = int(self._rows[-1])
        sizes = (np.zeros(0, np.int64),) * 2 if self._fixed else self._sizes
        self._shape = (
            used if context.rows is None or used < self._all_rows[-1] else context.rows,
            *self._forms.row_shape(*sizes),
        )
        self._empty = np.zeros(count, bool)
        # None once they are decoded, or where each is decoded by itself.
        self._encoded: list[bytes | None] | None = None
        if context.decoder is not None:
            self._encoded = [None] * count
        else:
            self.pixels: Tensor = context.pool.allocate(self._shape, context.transforms[0].dtype)
            if used < self._shape[0]:
                self.pixels[used:] = 0
        self._geometry = np.zeros((count, 6)) if context.geometry else None

    # Lists, since a worker asks for single numbers; made on demand, since it may not ask.

    @cached_property
    def _starts(self) -> list[int]:
        starts: list[int] = self.first.tolist()
        return starts

    @cached_property
    def _sides(self) -> list[tuple[int, int]]:
        return list(zip(*(sides.tolist() for sides in self._sizes), strict=True))

    @cached_property
    def _value_edges(self) -> list[int]:
        """Offsets of the images' values in a cache."""
        assert self._context.kept is not None
        ends: list[int] = edges(self._context.kept.values(*self._sizes)).tolist()
        return ends

    @cached_property
    def _array(self) -> Values:
        return array_of(self.pixels)

    def cut(self, start: int, stop: int) -> list[Sequence[Values]]:
        """Return the rows of each image of each of the slots `start` to `stop`, for `place`.

        All at once: one by one, between decoders, it takes ten times as long.
        """
        if self._context.decoder is not None:
            return [()] * (stop - start)
        first, last = self._starts[start], self._starts[stop]
        rows: list[int] = self._rows[first : last + 1].tolist()
        parts = [self._array[begin:end] for begin, end in itertools.pairwise(rows)]
        bounds = itertools.pairwise(self._starts[start : stop + 1])
        return [parts[begin - first : end - first] for begin, end in bounds]

    def pictures(self, slot: int) -> tuple[ImageTransform, list[Tensor]]:
        """Return what made the images of a sample, and each of them as pictures [n, 3, h, w]."""
        rows = enumerate(self.cut(slot, slot + 1)[0], self._starts[slot])
        return self._transforms[slot], [
            self._transform(slot, image).pictures(
                tensor_of(own, self.pixels.dtype), *self._sides[image]
            )
            for image, own in rows
        ]

    def decode(self, slot: int, number: int, data: Encoded) -> Decoded:
        """Decode the `number`-th image of a sample; another size than indexed is an error."""
        at = self._starts[slot] + number
        image = self._transform(slot, at).decode(data)
        check_indexed((image.width, image.height), self._sides[at])
        return image

    def check_changed(self, slot: int, number: int, image: Decoded) -> None:
        """Raise `TransformError` if the image, of a user's transform, has no planned size."""
        at = self._starts[slot] + number
        self._transform(slot, at).check_changed(image, *self._sides[at])

    def place(
        self, slot: int, number: int, image: Decoded, rows: Values, room: UInt8 | None = None
    ) -> None:
        """Fit an image into its rows, and into the memory of a cache for the sample's images."""
        if room is not None:
            kept = self._context.kept
            assert kept is not None
            facts, values = self._kept_part(slot, number, room)
            placement = kept.place(image, values)
            facts[:] = (*placement, image.width, image.height)
            self._finish(slot, number, facts, values, rows)
            return
        at = self._starts[slot] + number
        placement = self._transform(slot, at).place(image, rows, self._draw(slot, number))
        if self._geometry is not None:
            self._geometry[at] = (*placement, image.width, image.height)

    def restore_many(self, slots: Int64, starts: Int64, source: DecodedSource) -> bool:
        """Do `restore` for the samples in some slots at once; return False if that is impossible.

        Python's work for each image would take longer than the copy of it. `starts` is the offset
        of the images of each sample in its buffer, int64 [n].
        """
        if not self._fixed or self._geometry is not None:
            return False
        kept = self._context.kept
        assert kept is not None
        images, bounds = places(self.first, slots)
        counts = np.diff(bounds)
        numbers = np.arange(len(images)) - np.repeat(bounds[:-1], counts)
        step = source.before + math.prod(kept.own_shape(0, 0))
        begins = np.repeat(starts + source.before, counts) + numbers * step
        mirrored = np.zeros(len(images), bool)
        if any(each.spec.flip for each in self._context.transforms):
            drawn = zip(np.repeat(slots, counts).tolist(), numbers.tolist(), strict=True)
            mirrored[:] = [self._is_mirrored(slot, number) for slot, number in drawn]
        rows = self._rows[images]  # each image is one row
        one_each = bool((counts == 1).all())
        moves: dict[int, list[ImageMoves]] = {}  # by kind
        for data, indices in source.buffers(slots):
            alike = [(0, indices)]
            if self._kinds is not None:
                kinds = grouped(self._kinds[slots[indices]])
                alike = [(kind, indices[chosen]) for kind, chosen in kinds]
            for kind, chosen in alike:
                at = chosen if one_each else places(bounds, chosen)[0]
                move = ImageMoves(data, begins[at], rows[at], mirrored[at])
                moves.setdefault(kind, []).append(move)
        transforms, interleaved = self._context.transforms, source.interleaved
        return all(
            transforms[kind].finish_many(each, self._array, interleaved=interleaved)
            for kind, each in moves.items()
        )

    def restore(
        self, slot: int, ready: UInt8, rows: Sequence[Values], placements: Float64 | None = None
    ) -> None:
        """Fill the rows of a sample from its decoded images.

        With `placements` they are those of an array, which are interleaved; else those of a cache.
        """
        for number, out in enumerate(rows):
            if placements is None:
                facts, values = self._kept_part(slot, number, ready)
            else:
                facts, values = placements[number], self._interleaved_part(number, ready)
            self._finish(slot, number, facts, values, out)

    def _interleaved_part(self, number: int, kept: UInt8) -> UInt8:
        """Return the values of an image of an array, whose first one of the sample is at 0."""
        transform = self._context.kept
        assert transform is not None
        *shape, height, width = transform.own_shape(0, 0)
        size = 3 * height * width
        # A copy, since mapped memory is read-only, and torch warns of such tensors.
        values = torch.from_numpy(kept[number * size : (number + 1) * size].copy())
        planes = values.view(height, width, 3).permute(2, 0, 1).contiguous()
        return planes.view(*shape, height, width).numpy()

    def _kept_part(self, slot: int, number: int, kept: UInt8) -> tuple[Float64, UInt8]:
        """Return facts and values of an image in the cache entry of its sample's images."""
        transform = self._context.kept
        assert transform is not None
        first, image = self._starts[slot], self._starts[slot] + number
        start = FACTS * number + self._value_edges[image] - self._value_edges[first]
        middle = start + FACTS
        stop = middle + self._value_edges[image + 1] - self._value_edges[image]
        values = kept[middle:stop].reshape(transform.own_shape(*self._sides[image]))
        return kept[start:middle].view(np.float64), values

    def _finish(self, slot: int, number: int, facts: Float64, values: UInt8, rows: Values) -> None:
        """Mirror decoded values if they are drawn to be, and normalise them into their rows."""
        transform, mirrored = self._transforms[slot], self._is_mirrored(slot, number)
        if mirrored:
            values = values[..., ::-1].copy()
        transform.finish(values, rows)
        if self._geometry is not None:
            at = self._starts[slot] + number
            placement = Placement(*facts[:4].tolist())
            if mirrored:
                placement = placement.mirrored(transform.spec.width)
            self._geometry[at] = (*placement, *self._sides[at])

    def keep(self, slot: int, number: int, data: bytes) -> None:
        """Keep an encoded image until all of them are decoded together."""
        assert self._encoded is not None
        self._encoded[int(self.first[slot]) + number] = data

    def decode_together(self) -> dict[int, DecodeError]:
        """Decode all images that were kept. Return the errors by slot; empty slots are zero."""
        decoder = self._context.decoder
        assert decoder is not None
        assert self._encoded is not None
        slots: list[int] = owners(self.first).tolist()
        draws = [self._draw(slot, image - self._starts[slot]) for image, slot in enumerate(slots)]
        padding = [None] * (self._shape[0] - len(slots))
        self.pixels, failed = decoder.decode(
            [*self._encoded, *padding], [*draws, *padding], [*self._sides, *padding]
        )
        if self._geometry is not None:
            for image, data in enumerate(self._encoded):
                if data is not None:
                    sides = self._sides[image]
                    placed = decoder.placement(*sides, draws[image])
                    self._geometry[image] = (*placed, *sides)
        self._encoded = None
        return {slots[image]: error for image, error in failed.items()}

    def empty(self, slot: int) -> None:
        """Fill the rows of a slot with zeros; with ones where models take zeros for padding."""
        first, stop = int(self.first[slot]), int(self.first[slot + 1])
        self._empty[first:stop] = True
        if self._encoded is not None:
            self._encoded[first:stop] = [None] * (stop - first)
            return
        value = int(self._context.transforms[0].nested)
        self.pixels[int(self._rows[first]) : int(self._rows[stop])] = value
        if self._geometry is not None:
            self._geometry[first:stop] = 0

    def result(self, *, complete: bool) -> dict[str, Any]:
        """Return the arguments of the model; unless `complete`, those without any row are left out.

        Vision towers refuse a batch of no images, and a model that is given none skips them.
        """
        if not complete and not (self._all_rows[-1] or self._shape[0]):
            return {}
        facts = {} if self._fixed else self._forms.facts(*self._sizes)
        if any(each.of_several is not None for each in self._context.transforms):
            # A model tells by it which images are tiles; it takes no samples without images.
            facts["batch_num_images"] = torch.from_numpy(self._images[self._images > 0])
        nested = self._context.transforms[0].nested  # all of a batch are
        return {"pixel_values": self.pixels[None] if nested else self.pixels, **facts}

    @property
    def blank(self) -> Tensor:
        """Rows of `pixel_values` that hold no image: bool [rows]."""
        empty = np.repeat(self._empty, np.diff(self._all_rows))
        out = np.ones(max(len(empty), self._context.rows or 0), bool)
        out[: len(empty)] = empty
        return torch.from_numpy(out)

    def geometry(self) -> Tensor | None:
        """Return `image_geometry`, float64 [I, 6]; None if it is not asked for."""
        return None if self._geometry is None else torch.from_numpy(self._geometry)

    def _count_rows(self) -> Int64:
        return self._forms.rows(*self._sizes)

    def _transform(self, slot: int, image: int) -> ImageTransform:
        return self._transforms[slot]

    def _is_mirrored(self, slot: int, number: int) -> bool:
        draw = self._draw(slot, number)
        return draw is not None and draw.mirrors(self._transforms[slot].spec.flip)

    def _draw(self, slot: int, number: int) -> Draw | None:
        if not self._transforms[slot].spec.random:
            return None
        if (frames := self._in_videos) is not None:  # one draw for all frames of a video
            number -= int(frames.numbers[self._starts[slot] + number])
        return image_draw(self._context.seed, *self._drawn_by(slot), number)

    @cached_property
    def _in_videos(self) -> Frames | None:
        """Frames among the images of the batch; None if the dataset has none."""
        return frames_taken(self._context.columns, self._samples, self._images)

    @cached_property
    def _sizes(self) -> tuple[Int64, Int64]:
        return self._context.columns.image_sides(self._samples, self._images)[:2]
