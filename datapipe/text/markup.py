"""Text that a model expects for an image and for a video, and the tokens that both become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Int64
from datapipe.declared import Count, Word, check_fields, shorten
from datapipe.errors import DecodeError, PlanError
from datapipe.short_repr import short_repr


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageMarkup:
    """Text that a model expects between the tokens of an image.

    An image is a grid of cells, row by row: of the tiles it is cut into, or of single tokens where
    images keep their size ("dynamic", "native"). `{row}` and `{column}` of a cell and `{number}` of
    it count from 1.

    Attributes:
        start: at the beginning.
        cell: before each cell.
        between_cells: between two cells of a row.
        between_rows: between two rows.
        whole: before the tile that shows the whole image, which follows the others.
        alone: before the cell of an image that has no other; None as any other cell.
        end: at the end.

    Raises:
        PlanError: a value is not text, or names something else in braces.

    Examples:
        >>> rows = datapipe.ImageMarkup(between_rows="[IMG_BREAK]", end="[IMG_END]")
        >>> text = datapipe.TextSpec(tokenizer="tokenizer.json", image_markup=rows)
    """

    start: str = ""
    cell: str = ""
    between_cells: str = ""
    between_rows: str = ""
    whole: str = ""
    alone: str | None = None
    end: str = ""

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        filled(self.cell, f"cell={self.cell!r} of an ImageMarkup", row=1, column=1, number=1)

    __repr__ = short_repr


def filled(text: str, shown: str, **values: float) -> str:
    """Return a text with its braces filled; `PlanError`, about `shown`, for another name in one."""
    try:
        return text.format(**values)
    except (LookupError, ValueError, AttributeError) as error:
        names = ", ".join(f"{{{name}}}" for name in values)
        raise PlanError(
            f"{shown}: only {names} may stand in braces; double a brace that is meant"
        ) from error


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageRuns:
    """Runs of tokens that images become, by the grid of each."""

    markup: ImageMarkup  # between the image tokens
    encode: Callable[[str], Sequence[int]]  # returns the ids of a text
    image_id: int  # the image token
    tokens: int  # image tokens of a cell
    whole: bool  # True if images of several cells have another one that shows the whole
    _known: dict[str, Int64] = field(default_factory=dict, init=False, repr=False)

    def lengths(self, grids: Int64) -> Int64:
        """Return the tokens of images, markup included: int64 [n] from the arguments of `ids`."""
        keys = np.zeros(len(grids), np.int64)
        for values in grids.T:
            keys = keys * (int(values.max(initial=0)) + 1) + values
        _, first, at = np.unique(keys, return_index=True, return_inverse=True)
        lengths = [len(self.ids(*grid)) for grid in grids[first].tolist()]
        return np.array(lengths, np.int64)[at]

    def ids(self, rows: int, columns: int, whole: int | None = None) -> Int64:
        """Return the tokens of an image: int64 [its length].

        `whole` is the number of image tokens of what shows the whole image; None is that of a cell.
        """
        parts: list[Int64] = []
        # Texts without image tokens between them are encoded together.
        text, tokens = "", 0
        for more, count in [*self._pieces(rows, columns, whole), (self.markup.end, 0)]:
            if more and tokens:
                parts += self._ids(text), np.full(tokens, self.image_id, np.int64)
                text, tokens = "", 0
            text, tokens = text + more, tokens + count
        return np.concatenate([*parts, self._ids(text), np.full(tokens, self.image_id, np.int64)])

    def _pieces(self, rows: int, columns: int, whole: int | None) -> Iterator[tuple[str, int]]:
        """Yield the texts of an image up to its end, and the image tokens after each."""
        markup, own = self.markup, self.tokens if whole is None else whole
        if rows == columns == 1 and markup.alone is not None:
            yield markup.start + markup.alone, own
            return
        yield markup.start, 0
        tokens = own if rows == columns == 1 else self.tokens
        separate = markup.cell or markup.between_cells or markup.between_rows
        if not separate:
            yield "", rows * columns * tokens
        for row, column in product(range(rows if separate else 0), range(columns)):
            between = markup.between_cells if column else markup.between_rows if row else ""
            number = row * columns + column + 1
            before = markup.cell.format(row=row + 1, column=column + 1, number=number)
            yield between + before, tokens
        if self.whole and rows * columns > 1:
            yield markup.whole, own

    def _ids(self, text: str) -> Int64:
        if text not in self._known:
            self._known[text] = np.array(self.encode(text) if text else (), np.int64)
        return self._known[text]


class Shown(NamedTuple):
    """Images that one token of a text stands for."""

    images: int  # frames of a patch, or of a video without times; 1 for an image
    is_video: bool = False
    # Text of a video before its first token. Its first frame, which has no tokens, stands before
    # that, so that truncation leaves nothing of a video behind
    before: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class VideoMarkup:
    """Text that a model expects for a video, whose frames `ImageSpec(video=...)` makes patches of.

    Attributes:
        token: the token that is repeated for a video, as it stands in the vocabulary.
        patch: text of each patch along time, with `token` once, which is repeated, and `{seconds}`
            for the mean time of its first and its last frame. None repeats the token for all
            patches at once.
        frames: frames of a patch, as `ImageSpec.temporal`.

    Raises:
        PlanError: a value is empty, or `patch` lacks the token or names something else in braces.

    Examples:
        >>> markup = datapipe.VideoMarkup(patch="<{seconds:.1f} seconds><|video_pad|>")
        >>> text = datapipe.TextSpec(tokenizer="tokenizer.json", video_markup=markup)
    """

    token: Word = "<|video_pad|>"
    patch: Word | None = None
    frames: Count = 2

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "video_markup {}".format)
        if not self.token.strip():
            raise PlanError(
                f"video_markup token={shorten(self.token)}: give a token of the vocabulary"
            )
        if self.patch is None:
            return
        shown = f"video_markup patch={shorten(self.patch)}"
        written = filled(self.patch, shown, seconds=0.0)
        if (count := written.count(self.token)) != 1:
            raise PlanError(
                f"{shown} has {shorten(self.token)} {count} times; it must appear there once, and "
                "is repeated as often as a patch has tokens"
            )

    __repr__ = short_repr


def write_video(markup: VideoMarkup, times: Sequence[float]) -> tuple[str, list[Shown]]:
    """Return the text of a video by the times of its frames, and what its tokens stand for.

    `DecodeError` for a video of fewer frames than a patch, where each patch has its time.

    Examples:
        >>> write_video(VideoMarkup(patch="<{seconds} s><|video_pad|>"), [0.0, 0.5, 1.0])[0]
        '<0.25 s><|video_pad|><1.0 s><|video_pad|>'
    """
    count, size = len(times), markup.frames
    if markup.patch is None:
        return markup.token, [Shown(count, is_video=True)]
    if count < size:
        raise DecodeError(
            f"a video has {count} frame{'s' * (count != 1)}, and the model takes at least {size}; "
            "pack more of its frames"
        )
    text, shown = "", []
    for at in range(0, count, size):
        last = min(at + size, count) - 1
        text += markup.patch.format(seconds=(times[at] + times[last]) / 2)
        shown.append(Shown(last + 1 - at, is_video=True))
    if size > 1:
        shown[0] = shown[0]._replace(before=text.partition(markup.token)[0])
    return text, shown


def patch_end(markup: VideoMarkup | None) -> str:
    """Return the text of a patch behind its tokens; none where all patches have one run."""
    if markup is None or markup.patch is None:
        return ""
    return markup.patch.format(seconds=0.0).rpartition(markup.token)[2]


def frames_at(tokens_at: Int64, shown: Sequence[Shown], ids: Callable[[str], list[int]]) -> Int64:
    """Return the text tokens before each image and frame, of those before the tokens for them.

    `ids` returns the tokens of a text.
    """
    counts = [each.images for each in shown]
    at = np.repeat(tokens_at, counts)
    for first, each in zip(accumulate(counts, initial=0), shown, strict=False):
        if each.before:
            at[first] -= len(ids(each.before))
    return at
