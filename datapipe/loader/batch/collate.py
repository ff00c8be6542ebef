"""Token arrays of a batch, to which each sample is written in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from datapipe.array_types import Int32, Int64
from datapipe.plan.epoch import round_up
from datapipe.plan.ragged import edges, ranges
from datapipe.text.truncate import IGNORE


class PaddedTokens:
    """Arrays of `[B, L]`: one row per text, padded on the right, or on the left to be continued."""

    def __init__(
        self,
        lengths: Int64,  # int64 [B]
        *,
        pad_id: int,
        multiple_of: int = 1,  # L is rounded up to a multiple of this
        total: int | None = None,  # L; None for the longest sample
        mrope: bool = False,  # positions of frame, row and column; else models count by themselves
        left: bool = False,
    ) -> None:
        longest = int(round_up(lengths.max(keepdims=True), multiple_of)[0])
        assert total is None or longest <= total, "the plan has no sample over the limit"
        shape = (len(lengths), longest if total is None else total)
        self._input_ids = np.full(shape, pad_id, np.int64)
        self._labels = np.full(shape, IGNORE, np.int64)
        self._mask = np.zeros_like(self._labels)
        self._left = left
        self._positions = np.zeros((3, *shape), np.int64) if mrope else None

    def write(
        self, slot: int, input_ids: Int64, labels: Int64, positions: Int64 | None = None
    ) -> None:
        """Write the tokens of one text: int64 [its planned length].

        Batches with positions take them too: int64 [3, its planned length], see `mrope_positions`.
        """
        start = self._mask.shape[1] - len(input_ids) if self._left else 0
        at = slice(start, start + len(input_ids))
        self._input_ids[slot, at] = input_ids
        self._labels[slot, at] = labels
        self._mask[slot, at] = 1
        if self._positions is not None:
            assert positions is not None
            self._positions[:, slot, at] = positions

    def result(self) -> dict[str, Any]:
        """Return the arguments of the model."""
        tokens: dict[str, Int64] = {
            "input_ids": self._input_ids,
            "labels": self._labels,
            "attention_mask": self._mask,
        }
        if self._positions is not None:
            tokens["position_ids"] = self._positions
        return {name: torch.from_numpy(values) for name, values in tokens.items()}


class PackedTokens:
    """Arrays of `[1, T]`: all samples in one row, kept apart by `cu_seq_lens` and positions.

    There is no `attention_mask`: a model that sees one ignores the sequence lengths. The rest of
    `total` is a segment of its own, so that no sample attends to padding of another. With `mrope`,
    positions of frame, row and column follow the ordinary ones, `[4, 1, T]`: by the first models
    find packs, by the others they rotate. Padding has the ordinary ones.
    """

    def __init__(
        self,
        lengths: Int64,  # int64 [S], of the samples
        *,
        pad_id: int,
        multiple_of: int = 1,  # each sample is padded to a multiple of this
        total: int | None = None,  # T; None for the sum of the padded lengths
        segments: int | None = None,  # of `cu_seq_lens` at last; `max_length` is then `total`
        mrope: bool = False,
    ) -> None:
        self._starts = edges(round_up(lengths, multiple_of))
        used = int(self._starts[-1])
        length = used if total is None else total
        assert used <= length, "the plan fills no pack over its capacity"
        self._input_ids = np.full((1, length), pad_id, np.int64)
        self._labels = np.full((1, length), IGNORE, np.int64)
        bounds = self._starts if used == length else np.append(self._starts, length)
        self._positions = (np.arange(length) - np.repeat(bounds[:-1], np.diff(bounds)))[None]
        if mrope:
            self._positions = np.tile(self._positions, (4, 1, 1))
        self._longest = int(np.diff(bounds).max(initial=0))
        if segments is not None:
            self._longest = length
            bounds = np.pad(bounds, (0, segments + 1 - len(bounds)), constant_values=length)
        self._bounds: Int32 = bounds.astype(np.int32)

    def write(
        self, slot: int, input_ids: Int64, labels: Int64, positions: Int64 | None = None
    ) -> None:
        """Write the tokens of one sample, see `PaddedTokens.write`."""
        start = self._starts[slot]
        self._input_ids[0, start : start + len(input_ids)] = input_ids
        self._labels[0, start : start + len(labels)] = labels
        if positions is not None:
            self._positions[1:, 0, start : start + len(input_ids)] = positions

    def result(self) -> dict[str, Any]:
        """Return the arguments of the model."""
        lengths = torch.from_numpy(self._bounds)
        return {
            "input_ids": torch.from_numpy(self._input_ids),
            "labels": torch.from_numpy(self._labels),
            "position_ids": torch.from_numpy(self._positions),
            "cu_seq_lens_q": lengths,
            "cu_seq_lens_k": lengths,
            "max_length_q": self._longest,
            "max_length_k": self._longest,
        }


def mrope_positions(length: int, starts: Int64, grids: Int64, later: Int64 | None = None) -> Int64:
    """Return frame, row and column of every token of one sample: int64 [3, length].

    Models of the Qwen2-VL family rotate by them (M-RoPE). A text token advances all three by one.
    The tokens of an image that begins at position p have frame p, and their row and column in its
    grid, each counted from p. The next token has p + max(rows, columns). This is `get_rope_index`
    of Qwen2-VL in transformers, where each image is one frame. Unlike it, images may follow each
    other without a token between them. `starts` is the index of each image's first token, int64
    [P], ascending; `grids` are its rows and columns in tokens, int64 [P, 2].

    Patches of a video count as images. Those that go on with the video of the one before them have
    its p, and their frame is that many `later`, int64 [P]; it is -1 for images and first patches.
    """
    counts = grids.prod(axis=1)
    tokens = ranges(starts, counts)
    assert len(tokens) == 0 or tokens[-1] < length, "an image has as many tokens as its grid"
    steps = np.ones(length, np.int64)
    steps[tokens] = 0
    first = np.arange(len(starts))
    if later is None:
        later = np.full_like(first, -1)
    first = np.maximum.accumulate(np.where(later < 0, first, 0))
    steps[starts] = np.where(later < 0, grids.max(axis=1, initial=0), 0)
    begins = edges(steps)[:-1]
    positions = np.tile(begins, (3, 1))
    index = ranges(np.zeros_like(counts), counts)
    columns = np.repeat(grids[:, 1], counts)
    positions[:, tokens] = np.repeat(begins[starts[first]], counts)
    positions[0, tokens] += np.repeat(np.maximum(later, 0), counts)
    positions[1, tokens] += index // columns
    positions[2, tokens] += index % columns
    return positions
