"""Texts of a batch to tokens, each as long as planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from datapipe.array_types import Bools, Int64
from datapipe.errors import DecodeError, IndexMismatch, PlanError, SampleError
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.tokens.columns import TokenColumns
from datapipe.loader.batch.collate import PackedTokens, PaddedTokens, mrope_positions
from datapipe.loader.schedule.mixture.part import MixturePart
from datapipe.loader.schedule.sample_source import TextRule
from datapipe.plan.ragged import edges
from datapipe.plan.units import Sizes
from datapipe.store.arrays import TokenArrays, open_token_arrays
from datapipe.text.encode import EncodedText, SampleText, TextEncoder
from datapipe.text.frames import Frames
from datapipe.text.markup import VideoMarkup
from datapipe.text.truncate import IGNORE, expand
from datapipe.text.videos import VIDEO_FIELD, read_videos


@dataclass(frozen=True, kw_only=True, eq=False)  # kinds are compared by identity
class TextKind:
    """Texts of one dataset: their encoder, and the tokens of their images.

    Methods take the number of a sample in the dataset.
    """

    part: MixturePart
    rule: TextRule  # of the part; texts of all kinds that share an encoder are encoded together
    first: int  # number in batches of the first sample of the dataset
    # Positions of tokens of a video advance by so many a second; None if by one a patch
    tokens_per_second: float | None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_arrays"}

    @cached_property
    def is_stored(self) -> bool:
        """True if the tokens were written with the dataset, so no text is encoded."""
        arrays = self.part.data.arrays
        return arrays is not None and arrays.encoder == self.rule.encoder.digest

    @cached_property
    def has_grids(self) -> bool:
        """True if positions have an axis each for frames, rows and columns.

        A model that answers a prompt counts positions by itself.
        """
        return self.rule.images.grids is not None and not self.rule.spec.prompts

    @cached_property
    def _arrays(self) -> tuple[TokenArrays, TokenColumns]:
        data = self.part.data
        with as_one_of(data.of):
            arrays = open_token_arrays(data.unchanged(), self.rule.encoder.digest)
            assert arrays is not None
            return arrays, self.part.text().columns

    def stored(self, sample: int) -> EncodedText:
        """Return the text of a sample as its tokens were written."""
        arrays, columns = self._arrays
        tokens, labels = arrays.of(sample)
        start, stop = columns.sample_image_at[sample : sample + 2].tolist()
        return EncodedText(tokens, columns.image_at[start:stop], labels != IGNORE)

    def image_runs(self, sample: int) -> list[Int64]:
        """Return the tokens of each image of a sample, int64 [its length] each."""
        images, encoder = self.rule.images, self.rule.encoder
        sides = self._sides(sample)
        if images.markup is not None:
            return images.markup.runs(*sides)
        assert encoder.image_id is not None or not len(sides[0])
        frames = self.frames(sample)
        per_sample = np.array([len(sides[0])], np.int64)
        counts = images.count("tokens", *sides, frames, per_sample).tolist()
        tokens = [encoder.image_id] * len(counts)
        if frames is not None:
            ids = encoder.image_id, encoder.video_id
            tokens = [ids[is_frame] for is_frame in (frames.counts > 0).tolist()]
        return [
            np.full(count, token, np.int64) for count, token in zip(counts, tokens, strict=True)
        ]

    def image_grids(self, sample: int) -> Int64:
        """Return rows and columns in tokens of each image of a sample: int64 [its images, 2]."""
        images, sides, frames = self.rule.images, self._sides(sample), self.frames(sample)
        if frames is not None:
            assert images.videos is not None
            return images.videos.cells(*sides, frames)
        assert images.grids is not None
        return images.grids(*sides)

    def frames(self, sample: int) -> Frames | None:
        """Return the frames of videos among the images of a sample; None if each is an image."""
        return self.rule.frames(self.part.data.columns(), np.array([sample], np.int64))

    def _sides(self, sample: int) -> tuple[Int64, Int64]:
        columns = self.part.data.columns()
        images = slice(*columns.sample_image[sample : sample + 2].tolist())
        return (
            columns.image_width[images].astype(np.int64),
            columns.image_height[images].astype(np.int64),
        )

    def seconds(self, text: SampleText, sample: int) -> list[float]:
        """Return the seconds of a patch of each video of a sample; none if it has no video.

        As in the processor of Qwen2.5-VL, whose frames are spread over the whole video. Raises
        `DecodeError` if its record has other videos than the names of its images.
        """
        if self.rule.spec.video_markup is None:
            return []
        videos = read_videos(text.record, most=text.max_frames)
        told = [(video.first, len(video.times)) for video in videos]
        frames = self.frames(sample)
        named = [] if frames is None else frames.videos
        if told != named:
            raise DecodeError(
                f"its `{VIDEO_FIELD}` has videos of {[count for _, count in told]} frames, but by "
                f"the names of its members they have {[count for _, count in named]}, or others "
                "come first; pack it again, or name frames `KEY.v0.0000.jpg`"
            )
        return [self.markup.frames * video.duration / len(video.times) for video in videos]

    @property
    def markup(self) -> VideoMarkup:
        """Text of a video, for samples that have `frames`."""
        markup = self.rule.spec.video_markup
        assert isinstance(markup, VideoMarkup)
        return markup


def check_texts(texts: Sequence[TextKind], names: Sequence[str]) -> None:
    """Raise PlanError for texts of datasets, with their names, that cannot be in one batch."""
    first = texts[0].rule.encoder
    for text, name in zip(texts[1:], names[1:], strict=True):
        encoder, problem = text.rule.encoder, None
        if encoder is not first and encoder.vocabulary != first.vocabulary:
            problem = (
                "have different tokenizers, and a token of one means another text in the other"
            )
        elif encoder.image_token != first.image_token:
            problem = f"repeat {first.image_token!r} and {encoder.image_token!r} for an image"
        elif encoder.spec.token_types != first.spec.token_types:
            here, there = first.spec.token_types, encoder.spec.token_types
            problem = f"differ in their token types: token_types={here!r} and {there!r}"
        elif encoder.spec.seq_idx != first.spec.seq_idx:
            problem = "have packs with and without seq_idx: seq_idx=True and seq_idx=False"
        elif encoder.spec.pairs != first.spec.pairs:
            problem = "have pairs of answers and single ones: pairs=True and pairs=False"
        elif encoder.spec.prompts != first.spec.prompts:
            problem = "have prompts alone and answers: prompts=True and prompts=False"
        elif encoder.pad_id != first.pad_id:
            problem = f"are padded with token {first.pad_id} and token {encoder.pad_id}"
        elif text.has_grids != texts[0].has_grids:
            problem = "have positions along one axis and along three: mrope=False and mrope=True"
        if problem is not None:
            raise PlanError(
                f"texts of {names[0]} and {name} {problem}; give both the same, or train on one "
                "of them"
            )


@dataclass(frozen=True, kw_only=True)
class TokenContext:
    """Context that the token arrays of all batches share."""

    texts: tuple[TextKind, ...]  # of each kind; `check_texts` says which can be in one batch
    kinds: Callable[[Int64], Int64] | None = None  # of samples, int64 [n]; None for one kind
    pack: bool  # batches are packs
    multiple_of: int = 1  # of lengths: of each sample in a pack, of a padded batch
    total: int | None = None  # constant length of batches, see `PackedTokens` and `PaddedTokens`
    segments: int | None = None  # constant number of segments of packed batches
    # Further arguments of the model, the same in each batch
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> bool:
        """True if samples are preference pairs; all of a loader are."""
        return self.texts[0].rule.spec.pairs

    def kinds_of(self, samples: Int64) -> list[TextKind]:
        """Return the texts of each of n samples."""
        if self.kinds is None:
            return [self.texts[0]] * len(samples)
        return [self.texts[kind] for kind in self.kinds(samples).tolist()]


class TokenSlots:
    """Tokens of one batch. Of B preference pairs, rows B to 2B have the rejected answers."""

    def __init__(self, context: TokenContext, samples: Int64, sizes: Sizes) -> None:
        first = context.texts[0]
        encoder, self._spec = first.rule.encoder, first.rule.spec
        self._pad_id, self._image_id = encoder.pad_id, encoder.image_id
        self._answers = 2 if context.pairs else 1
        self._kinds = context.kinds_of(samples)
        self._constants = dict(context.constants)
        self._samples = samples
        self._sizes = sizes
        self._seconds: dict[int, list[float]] = {}  # of a patch of each video, by slot
        options: dict[str, Any] = {
            "pad_id": self._pad_id,
            "multiple_of": context.multiple_of,
            "total": context.total,
            "mrope": first.has_grids,
        }
        self._batch: PackedTokens | PaddedTokens
        if context.pack:
            self._batch = PackedTokens(sizes.tokens, segments=context.segments, **options)
        else:
            lengths = np.tile(sizes.tokens, self._answers)
            self._batch = PaddedTokens(lengths, left=self._spec.prompts, **options)

    def is_stored(self, slot: int) -> bool:
        """Return whether the tokens of a slot come from its dataset, so its text is not needed."""
        return self._kinds[slot].is_stored

    def fill(self, texts: Mapping[int, SampleText], valid: Bools) -> dict[int, SampleError]:
        """Encode and write the texts of some slots. Return the errors by slot.

        `IndexMismatch` if a text is not as long as it was when tokens were counted.
        """
        failed: dict[int, SampleError] = {}
        waiting: dict[TextEncoder, list[int]] = {}
        for slot in texts:
            kind = self._kinds[slot]
            if kind.is_stored:
                encoded = kind.stored(self._number(slot))
                self._write_text(slot, encoded, bool(valid[slot]))
            else:
                waiting.setdefault(kind.rule.encoder, []).append(slot)
        for encoder, slots in waiting.items():
            results = encoder.encode([texts[slot] for slot in slots])
            for slot, result in zip(slots, results, strict=True):
                if isinstance(result, SampleError):
                    failed[slot] = result
                    continue
                try:
                    self._seconds[slot] = self._kinds[slot].seconds(texts[slot], self._number(slot))
                except DecodeError as error:
                    failed[slot] = error
                else:
                    self._write_text(slot, result, bool(valid[slot]))
        return failed

    def empty(self, slot: int) -> None:
        """Fill a slot with as many tokens as planned, without labels.

        As many image tokens as planned stay, since models compare their number with the images.
        """
        images = self._kinds[slot].image_runs(self._number(slot))
        images = images[: int(self._sizes.images[slot])]
        starts = edges(np.array([len(image) for image in images], np.int64))
        length = int(self._sizes.tokens[slot])
        input_ids = np.full(length, self._pad_id, np.int64)
        input_ids[: int(starts[-1])] = np.concatenate([*images, input_ids[:0]])
        for answer in range(self._answers):
            self._write(slot, answer, input_ids, np.full(length, IGNORE, np.int64), starts[:-1])

    def result(self) -> dict[str, Any]:
        """Return the arguments of the model."""
        result = self._batch.result()
        if self._spec.prompts:
            del result["labels"]
        if types := self._spec.token_types:
            name = "token_type_ids" if types is True else types
            result[name] = (result["input_ids"] == self._image_id).long()
        if self._spec.seq_idx and "cu_seq_lens_q" in result:
            lengths = result["cu_seq_lens_q"].diff()
            numbers = torch.arange(len(lengths), dtype=torch.int32, device="cpu")
            result["seq_idx"] = numbers.repeat_interleave(lengths)[None]
        if any(kind.tokens_per_second is not None for kind in self._kinds):
            slots = range(len(self._samples))
            seconds = [second for slot in slots for second in self._seconds_of(slot)]
            if seconds:
                result["second_per_grid_ts"] = torch.tensor(
                    seconds, dtype=torch.float32, device="cpu"
                )
        return result | self._constants

    def _number(self, slot: int) -> int:
        return int(self._samples[slot]) - self._kinds[slot].first

    def _write_text(self, slot: int, encoded: EncodedText, valid: bool) -> None:
        kind = self._kinds[slot]
        texts = [encoded] if encoded.rejected is None else [encoded, encoded.rejected]
        rule, number = kind.rule, self._number(slot)
        around = (rule.encoder.image_wrap, kind.frames(number), rule.encoder.video_wrap)
        expanded = [expand(text, kind.image_runs(number), rule.limit, *around) for text in texts]
        planned = (int(self._sizes.tokens[slot]), int(self._sizes.images[slot]))
        found = (max(len(text.input_ids) for text in expanded), expanded[0].images)
        if found != planned:
            raise IndexMismatch(
                f"sample number {self._samples[slot]} has {found[0]} tokens and {found[1]} "
                f"images, the plan says {planned[0]} and {planned[1]}; its text "
                "changed after its tokens were counted: remove the folder tokens-* beside "
                "the index and open the dataset again"
            )
        for answer, text in enumerate(expanded):
            labels = text.labels if valid else np.full_like(text.labels, IGNORE)
            self._write(slot, answer, text.input_ids, labels, text.image_at)

    def _write(
        self, slot: int, answer: int, input_ids: Int64, labels: Int64, image_at: Int64
    ) -> None:
        """Write tokens with images at `image_at`; `answer` 1 is the rejected one of a pair."""
        positions, kind, number = None, self._kinds[slot], self._number(slot)
        if kind.has_grids:
            grids = kind.image_grids(number)[: len(image_at)]
            runs, later = slice(None), None
            if (frames := kind.frames(number)) is not None:
                runs, later = self._patches(slot, frames[: len(image_at)])
            positions = mrope_positions(len(input_ids), image_at[runs], grids[runs], later)
        self._batch.write(slot + answer * len(self._samples), input_ids, labels, positions)

    def _patches(self, slot: int, frames: Frames) -> tuple[Any, Int64]:
        """Return the images that have tokens, and their `later` for `mrope_positions`."""
        markup = self._kinds[slot].markup
        runs = np.flatnonzero((frames.counts == 0) | frames.ends(markup.frames))
        patch = frames.numbers[runs] // markup.frames
        if markup.patch is not None or not len(patch):  # each patch has a time in front of it
            return runs, np.full(len(runs), -1)
        rate, steps = self._kinds[slot].tokens_per_second, np.ones(len(frames.counts), np.float32)
        if rate is not None:
            seconds = np.array(self._seconds_of(slot), np.float32)
            video = np.cumsum((frames.counts > 0) & (frames.numbers == 0)) - 1
            steps = np.float32(rate) * seconds[video] if len(seconds) else steps
        # In single precision, as models do.
        later = (patch.astype(np.float32) * steps[runs]).astype(np.int64)
        return runs, np.where(patch == 0, -1, later)

    def _seconds_of(self, slot: int) -> list[float]:
        """Return the seconds of a patch of each video in a slot; 1 if its text was not read."""
        frames = self._kinds[slot].frames(self._number(slot))
        if frames is None:
            return []
        frames = frames[: int(self._sizes.images[slot])]
        videos = len(frames.videos)
        return self._seconds.get(slot, [1.0] * videos)[:videos]
