"""Texts of a batch to tokens, each as long as planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.errors import IndexMismatch, SampleError
from datapipe.index.tokens.columns import TokenColumns
from datapipe.loader.batch.collate import PackedTokens, PaddedTokens, mrope_positions
from datapipe.plan.ragged import edges
from datapipe.plan.units import Sizes
from datapipe.store.arrays import TokenArrays
from datapipe.text.encode import EncodedText, SampleText, TextEncoder
from datapipe.text.truncate import IGNORE, expand


@dataclass(frozen=True, kw_only=True)
class TokenContext:
    """Context that the token arrays of all batches share.

    Attributes:
        stored: tokens that were written with the dataset, and the positions of images in them;
            None if texts are encoded.
        image_tokens: returns the tokens of each image of a sample.
        image_grids: returns rows and columns in tokens of each image of a sample, int64 [images,
            2], for positions with an axis each for frames, rows and columns; None for ordinary
            ones.
        limit: most tokens of a sample.
        pack: whether batches are packs.
        multiple_of: lengths are rounded up to it: of each sample in a pack, of a padded batch.
        total: constant length of batches, see `PackedTokens` and `PaddedTokens`.
        segments: constant number of segments of packed batches.
    """

    encoder: TextEncoder
    stored: tuple[TokenArrays, TokenColumns] | None
    image_tokens: Callable[[int], Int64]
    image_grids: Callable[[int], Int64] | None
    limit: int | None
    pack: bool
    multiple_of: int = 1
    total: int | None = None
    segments: int | None = None


class TokenSlots:
    """Tokens of one batch.

    Args:
        samples: int64 [B], their numbers.
    """

    def __init__(self, context: TokenContext, samples: Int64, sizes: Sizes) -> None:
        self._context = context
        self._samples = samples
        self._sizes = sizes
        options: dict[str, Any] = {
            "pad_id": context.encoder.pad_id,
            "multiple_of": context.multiple_of,
            "total": context.total,
            "mrope": context.image_grids is not None,
        }
        self._batch: PackedTokens | PaddedTokens
        if context.pack:
            self._batch = PackedTokens(sizes.tokens, segments=context.segments, **options)
        else:
            self._batch = PaddedTokens(sizes.tokens, **options)

    @property
    def stored(self) -> bool:
        """True if tokens come from the dataset, so texts are not needed for them."""
        return self._context.stored is not None

    def fill(self, texts: Mapping[int, SampleText], valid: Bools) -> dict[int, SampleError]:
        """Encode and write the texts of some slots. Return the errors by slot.

        Raises:
            IndexMismatch: a text is not as long as it was when tokens were counted.
        """
        failed: dict[int, SampleError] = {}
        if self._context.stored is not None:
            for slot in texts:
                encoded = _stored_text(*self._context.stored, int(self._samples[slot]))
                self._write_text(slot, encoded, bool(valid[slot]))
            return failed
        results = self._context.encoder.encode(list(texts.values()))
        for slot, result in zip(texts, results, strict=True):
            if isinstance(result, SampleError):
                failed[slot] = result
            else:
                self._write_text(slot, result, bool(valid[slot]))
        return failed

    def empty(self, slot: int) -> None:
        """Fill a slot with as many tokens as planned, without labels.

        As many image tokens as planned stay, since models compare their number with the images.
        """
        sample = int(self._samples[slot])
        counts = self._context.image_tokens(sample)[: int(self._sizes.images[slot])]
        starts = edges(counts)
        length = int(self._sizes.tokens[slot])
        input_ids = np.full(length, self._context.encoder.pad_id, np.int64)
        input_ids[: int(starts[-1])] = self._context.encoder.image_id or 0
        self._write(slot, input_ids, np.full(length, IGNORE, np.int64), starts[:-1])

    def result(self) -> dict[str, Any]:
        """Return the arguments of the model."""
        return self._batch.result()

    def _write_text(self, slot: int, encoded: EncodedText, valid: bool) -> None:
        context = self._context
        expanded = expand(
            encoded,
            context.image_tokens(int(self._samples[slot])),
            context.encoder.image_id,
            context.limit,
            context.encoder.image_wrap,
        )
        planned = (int(self._sizes.tokens[slot]), int(self._sizes.images[slot]))
        if (len(expanded.input_ids), expanded.images) != planned:
            raise IndexMismatch(
                f"sample number {self._samples[slot]} has {len(expanded.input_ids)} tokens and "
                f"{expanded.images} images, the plan says {planned[0]} and {planned[1]}; its text "
                "is not the one that tokens were counted of: remove the folder tokens-* beside "
                "the index and open the dataset again"
            )
        labels = expanded.labels if valid else np.full(planned[0], IGNORE, np.int64)
        self._write(slot, expanded.input_ids, labels, expanded.image_at)

    def _write(self, slot: int, input_ids: Int64, labels: Int64, image_at: Int64) -> None:
        """Write tokens whose images begin at `image_at`, int64 [images]."""
        positions = None
        if self._context.image_grids is not None:
            grids = self._context.image_grids(int(self._samples[slot]))[: len(image_at)]
            positions = mrope_positions(len(input_ids), image_at, grids)
        self._batch.write(slot, input_ids, labels, positions)


def _stored_text(arrays: TokenArrays, columns: TokenColumns, sample: int) -> EncodedText:
    """Return the text of a sample as its tokens were written."""
    tokens, labels = arrays.of(sample)
    start, stop = columns.sample_image_at[sample : sample + 2].tolist()
    return EncodedText(tokens, columns.image_at[start:stop], labels != IGNORE)
