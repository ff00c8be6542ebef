"""Tokens and rows of `pixel_values` of images, and the videos that they are frames of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.errors import PlanError
from datapipe.geometry.sizes import native
from datapipe.geometry.tiles import per_tile
from datapipe.index.columns import Columns
from datapipe.index.files.random_read import gather
from datapipe.index.images.header import is_stored_image
from datapipe.plan.ragged import edges, owners, places
from datapipe.text.encode import TextEncoder
from datapipe.text.frames import Frames
from datapipe.text.markup import ImageRuns
from datapipe.text.spec import TextSpec
from datapipe.text.videos import frame_of

if TYPE_CHECKING:  # imports torch, which planning does not need
    from datapipe.decode.forms.frame import VideoSizes
    from datapipe.decode.transform import ImageTransform

Counter = Callable[[Int64, Int64], Int64]
"""A function of widths and heights in pixels, int64 [n] each, that returns int64 [n]."""

_RULES: dict[str, Counter] = {"per-tile": per_tile, "native": native}

_SIDES = np.unique(np.geomspace(1, 8192, 64).astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class MarkedImages:
    """Images with markup between their tokens."""

    cells: Counter  # arguments of `ImageRuns.ids` for n images, int64 [n, 2 or 3]
    made: ImageRuns  # runs of tokens by rows and columns

    def count(self, widths: Int64, heights: Int64) -> Int64:
        """Return the tokens of n images: int64 [n]."""
        return self.made.lengths(self.cells(widths, heights))

    def runs(self, widths: Int64, heights: Int64) -> list[Int64]:
        """Return the tokens of each of n images, int64 [its length] each."""
        return [self.made.ids(*cells) for cells in self.cells(widths, heights).tolist()]


@dataclass(frozen=True, kw_only=True)
class ImageSizes:
    """Tokens and rows of images, by their size in pixels."""

    tokens: int | Counter  # of an image
    name: int | str  # of the rule, in states
    rows: int | Counter = 1  # of `pixel_values`
    # Rows and columns in tokens, int64 [n, 2]; None if positions of tokens do not depend on them
    grids: Counter | None = None
    markup: MarkedImages | None = None  # of images whose tokens have text between them
    videos: VideoSizes | None = None  # None if frames of videos are images like others
    # Of images that are not alone in their sample; None if they are like others
    of_several: ImageTransform | None = None

    def count(
        self,
        what: Literal["tokens", "rows"],
        widths: Int64,
        heights: Int64,
        frames: Frames | None = None,
        per_sample: Int64 | None = None,
    ) -> Int64:
        """Return the tokens or rows of each of n images: int64 [n].

        Samples have `per_sample` of them, int64 [samples]; None if each is alone in its sample.
        """
        if self.videos is not None and frames is not None:
            videos: Callable[[Int64, Int64, Frames], Int64] = getattr(self.videos, what)
            return videos(widths, heights, frames)
        counter: int | Counter = getattr(self, what)
        if isinstance(counter, int):
            return np.full(len(widths), counter, np.int64)
        if self.of_several is None or per_sample is None:
            return counter(widths, heights)
        several = np.repeat(per_sample > 1, per_sample)
        counts = np.empty(len(widths), np.int64)
        counts[~several] = counter(widths[~several], heights[~several])
        counts[several] = getattr(self.of_several, what)(widths[several], heights[several])
        return counts


def image_sizes(text: TextSpec, image: ImageTransform | None, encoder: TextEncoder) -> ImageSizes:
    """Return the sizes of images; `PlanError` if text and image options contradict each other.

    `image` is None if images are left out; the text has `image_tokens`.
    """
    asked = text.image_tokens
    assert asked is not None
    # Images of one size need a number.
    rule = None if image is None or image.spec.one_size else str(image.spec.image_tokens)
    if image is not None and isinstance(asked, str) and asked != rule:
        kind = (
            "makes all of them one size"
            if rule is None
            else f"is resize={image.spec.resize!r}, which goes with image_tokens={rule!r}"
        )
        raise PlanError(
            f"image_tokens={asked!r} needs images of their own size, and ImageSpec {kind}; give "
            "the number of tokens that the model makes of such an image"
        )
    if image is not None and isinstance(asked, int) and not image.takes_token_number:
        raise PlanError(
            f"image_tokens={asked} is one number, and resize={image.spec.resize!r} makes images of "
            f"different sizes; give image_tokens={rule!r}, or a function of widths and heights"
        )
    _check_videos(text, image)
    _check_several(text, image)
    if text.image_markup is not None:
        return _marked(text, image, encoder)
    if isinstance(asked, int):
        return ImageSizes(tokens=asked, name=asked)
    if isinstance(asked, str) and image is None:
        return ImageSizes(tokens=image_token_counter(asked), name=asked)
    grids = None
    if image is not None and image.spec.mrope:
        if not isinstance(asked, str):
            raise PlanError(
                f"image_tokens={asked!r} says how many tokens an image has, and "
                "ImageSpec(mrope=True) places them by its rows and columns; give "
                "image_tokens='native', or mrope=False"
            )
        grids = image.cells
    tokens = image.tokens if isinstance(asked, str) and image else image_token_counter(asked)
    rows = image.rows if rule is not None and image else None
    name, videos = _probed(tokens, rows), None
    if text.video_markup is not None and image is not None:
        from datapipe.decode.forms.frame import VideoSizes

        videos = VideoSizes.of(image)
        name += f"-{hashlib.sha256(repr(image.spec.video).encode()).hexdigest()[:16]}"
    of_several = None if image is None else image.of_several
    if of_several is not None:
        name += f"-{_probed(of_several.tokens, of_several.rows)}"
    return ImageSizes(
        tokens=tokens, rows=rows or 1, name=name, grids=grids, videos=videos, of_several=of_several
    )


def _check_several(text: TextSpec, image: ImageTransform | None) -> None:
    if image is None or image.of_several is None:
        return
    named = f"ImageSpec(pad_several={image.spec.pad_several})"
    if not isinstance(text.image_tokens, str):
        raise PlanError(
            f"image_tokens={text.image_tokens!r} does not say whether an image is alone in its "
            f"sample, on which the tokens depend with {named}; leave image_tokens= out"
        )
    if text.overlong == "truncate":
        raise PlanError(
            f"overlong='truncate' may leave one image of several, and with {named} models take an "
            "image that is alone for tiles; give overlong='drop', or a larger limit"
        )


def _check_videos(text: TextSpec, image: ImageTransform | None) -> None:
    markup = text.video_markup
    if markup is None or image is None:
        return
    if markup.frames != image.spec.temporal:
        raise PlanError(
            f"video_markup makes a patch of {markup.frames} frames, and ImageSpec(temporal="
            f"{image.spec.temporal}) of {image.spec.temporal}; give both the same"
        )
    if text.image_tokens != "native":
        raise PlanError(
            f"image_tokens={text.image_tokens!r} says how many tokens an image has, and not how "
            "many a frame; give image_tokens='native', or leave video_markup= out"
        )


def _marked(text: TextSpec, image: ImageTransform | None, encoder: TextEncoder) -> ImageSizes:
    asked, markup = text.image_tokens, text.image_markup
    assert markup is not None
    if image is None:
        raise PlanError(
            "image_markup= counts the tiles of images, and images are left out (image=None); give "
            "the ImageSpec of the model"
        )
    if image.spec.mrope or asked != image.spec.image_tokens:
        other = "ImageSpec(mrope=True)" if image.spec.mrope else f"image_tokens={asked!r}"
        raise PlanError(
            f"image_markup= says where the tokens of an image are, and so does {other}; leave one "
            "of them out"
        )
    if encoder.image_id is None:
        raise PlanError(
            "image_markup= stands between the tokens of an image, and the vocabulary has no token "
            "for them; name it by TextSpec(image_token=...)"
        )
    made = ImageRuns(
        markup=markup,
        encode=encoder.ids,
        image_id=encoder.image_id,
        tokens=image.cell_tokens,
        whole=image.adds_whole,
    )
    marked = MarkedImages(cells=image.cells, made=made)
    name = hashlib.sha256(repr(markup).encode()).hexdigest()[:16]
    return ImageSizes(
        tokens=marked.count,
        rows=image.rows,
        name=f"{_probed(marked.count, image.rows)}-{name}",
        markup=marked,
    )


def _probed(tokens: Counter, rows: Counter | None) -> str:
    """Return a digest of the results of functions, whose names mean nothing."""
    widths, heights = (side.ravel() for side in np.meshgrid(_SIDES, _SIDES))
    results = [tokens(widths, heights).tobytes()]
    if rows is not None:
        results.append(rows(widths, heights).tobytes())
    return hashlib.sha256(b"".join(results)).hexdigest()[:16]


def image_token_counter(rule: str | Callable[[Int64, Int64], Any]) -> Counter:
    """Return a function that counts the tokens of images, by their size as displayed.

    `rule` is "per-tile" (`geometry.tiles.per_tile`) or "native" (`geometry.sizes.native`), or a
    user's function. The result raises PlanError for sizes below 1, and if the user's function
    returns something else.
    """
    return _RULES[rule] if isinstance(rule, str) else partial(_call, rule)


def _call(function: Callable[[Int64, Int64], Any], widths: Int64, heights: Int64) -> Int64:
    counts = np.asarray(function(widths, heights))
    if counts.shape != widths.shape or not np.issubdtype(counts.dtype, np.integer):
        raise PlanError(
            f"image_tokens returned {counts.dtype} of shape {counts.shape} for {len(widths)} "
            f"images; it has to return one whole number for each, int64 [{len(widths)}]"
        )
    if len(counts) and counts.min() < 1:
        worst = int(np.argmin(counts))
        raise PlanError(
            f"image_tokens returned {counts[worst]} for an image of {widths[worst]} x "
            f"{heights[worst]} pixels; an image has at least one token"
        )
    return counts.astype(np.int64)


def has_frames(extensions: tuple[str, ...]) -> bool:
    """Return whether a dataset has frames of videos, by the extensions of its members."""
    return _extensions(extensions) is not None


def frames_of(columns: Columns, samples: Int64) -> Frames | None:
    """Return the frames of videos among all images of samples, int64 [n]; None if there are none.

    The images are those of the first sample in their order, then those of the next.
    """
    known = _extensions(columns.extensions)
    if known is None:
        return None
    is_image, video_of = known
    members, bounds = places(columns.sample_member, samples)
    codes = gather(columns.member_ext, members)
    images = is_image[codes]
    owner = owners(bounds)[images]
    videos = video_of[codes[images]]
    count = len(videos)
    begins = np.ones(count, bool)
    begins[1:] = (owner[1:] != owner[:-1]) | (videos[1:] != videos[:-1]) | (videos[1:] < 0)
    first = np.flatnonzero(begins)
    group = edges(begins)[1:] - 1
    length = np.diff(np.append(first, count))[group]
    number = np.arange(count) - first[group]
    return Frames(np.where(videos < 0, 0, length), number)


@lru_cache(maxsize=64)
def _extensions(names: tuple[str, ...]) -> tuple[Bools, Int64] | None:
    """Return whether each is that of an image, and the number of its video, -1 for no frame."""
    frames = [frame_of(name) for name in names]
    if not any(frames):
        return None
    videos = [-1 if frame is None else frame[0] for frame in frames]
    return np.array([is_stored_image(name) for name in names]), np.array(videos)
