"""Markup between the tokens of an image, and the run of tokens that an image becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from datapipe.array_types import Int64
from datapipe.declared import check_fields
from datapipe.errors import PlanError
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


def pieces_of(
    markup: ImageMarkup, rows: int, columns: int, *, tokens: int, whole: bool
) -> list[tuple[str, int]]:
    """Return the texts of an image in their order, each with the number of image tokens after it.

    A cell has so many `tokens`. If `whole`, an image of several has another that shows the whole.
    """
    if rows == columns == 1 and markup.alone is not None:
        return _joined([(markup.start + markup.alone, tokens), (markup.end, 0)])
    pieces = [(markup.start, 0)]
    for row in range(rows):
        for column in range(columns):
            between = markup.between_cells if column else markup.between_rows if row else ""
            number = row * columns + column + 1
            before = markup.cell.format(row=row + 1, column=column + 1, number=number)
            pieces.append((between + before, tokens))
    if whole and rows * columns > 1:
        pieces.append((markup.whole, tokens))
    return _joined([*pieces, (markup.end, 0)])


def _joined(pieces: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Join texts without image tokens between them, and image tokens without text between them."""
    joined = [("", 0)]
    for text, tokens in pieces:
        before, count = joined[-1]
        if not count:
            joined[-1] = (before + text, tokens)
        elif not text:
            joined[-1] = (before, count + tokens)
        elif text or tokens:
            joined.append((text, tokens))
    return joined


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
        """Return the tokens of images, markup included: int64 [n] from rows and columns [n, 2]."""
        wide = int(grids[:, 1].max(initial=0)) + 1
        found, at = np.unique(grids[:, 0] * wide + grids[:, 1], return_inverse=True)
        lengths = [
            sum(len(self._ids(text)) + tokens for text, tokens in self._pieces(*divmod(grid, wide)))
            for grid in found.tolist()
        ]
        return np.array(lengths, np.int64)[at]

    def ids(self, rows: int, columns: int) -> Int64:
        """Return the tokens of an image: int64 [its length]."""
        parts = [
            part
            for text, tokens in self._pieces(rows, columns)
            for part in (self._ids(text), np.full(tokens, self.image_id, np.int64))
        ]
        return np.concatenate(parts)

    def _pieces(self, rows: int, columns: int) -> list[tuple[str, int]]:
        return pieces_of(self.markup, rows, columns, tokens=self.tokens, whole=self.whole)

    def _ids(self, text: str) -> Int64:
        if text not in self._known:
            self._known[text] = np.array(self.encode(text) if text else (), np.int64)
        return self._known[text]
