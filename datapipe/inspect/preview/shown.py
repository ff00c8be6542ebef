"""Steps of a loader, taken apart into the samples that a page shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import DatapipeError, DecodeError, SampleError
from datapipe.index.members import SampleParts, wanted_members
from datapipe.inspect.preview.pictures import FRAME, show_file, show_values
from datapipe.loader.batch.builder import Batch, BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.loader.batch.sample_rows import read_rows
from datapipe.loader.batch.token_batch import TextKind
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.stage_clock import Watch
from datapipe.text.conversation import raw_turns
from datapipe.text.encode import EncodedText, TextEncoder
from datapipe.text.messages import SampleText
from datapipe.text.sample_text import sample_text
from datapipe.text.truncate import IGNORE, Expanded, expand
from datapipe.text.videos import Video, is_kept, read_videos

LEARNT, IMAGE, CUT, SPECIAL = 1, 2, 4, 8
"""Bits of a piece: the model learns to write it; it stands for an image; truncation removed it; it
is a token that no text spells."""

_MOST_TOKENS = 4096  # tokens of a sample that are shown
_JOINED = 6  # tokens that may make up one character
_MOST_FRAMES = 32  # of a video
_MOST_TEXT = 20_000  # characters of a text or record


def shown_steps(loader: Loader, *, step: int, samples: int, room: int) -> Iterator[dict[str, Any]]:
    """Yield steps for the page from `step` on, until `samples` were shown or `room` bytes filled.

    Raises:
        PlanError: the epoch has no such step.
    """
    parts = loader.components(loader.plan.position(step))
    images = parts.context.images
    context = replace(
        parts.context,
        # A page is there to see what fails.
        options=replace(parts.context.options, on_error="skip", meta=(GEOMETRY,)),
        images=None if images is None else replace(images, geometry=True),
        cache=None,
    )
    number, epoch, pack = step, loader.epoch, parts.schedule.plan.pack
    for job in parts.steps():
        if job.epoch != epoch or samples <= 0 or room <= 0:
            return
        builder = BatchBuilder(context, job)
        watch = Watch()
        for piece in range(builder.pieces):
            builder.run(piece, watch)
        batch, units = builder.result(), job.share.units
        tokens, sizes = batch.get("input_ids"), units.sizes
        slots = range(min(len(job.samples), samples))
        shown = [_sample(context, job, builder, batch, slot) for slot in slots]
        yield {
            "step": number,
            "units": np.diff(units.offsets).tolist(),
            # Tokens of each sample, and of a row of the batch with its padding
            "lengths": [] if tokens is None or sizes is None else sizes.tokens.tolist(),
            "capacity": pack or (0 if tokens is None else int(tokens.shape[1])),
            "arrays": {name: _described(v) for name, v in batch.items() if name != GEOMETRY},
            "samples": shown,
        }
        samples -= len(shown)
        room -= len(json.dumps(shown))
        number += 1


def _described(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, list) else repr(value)


def _sample(
    context: BatchContext, job: StepJob, builder: BatchBuilder, batch: Batch, slot: int
) -> dict[str, Any]:
    one, number = job.samples[slot : slot + 1], int(job.samples[slot])
    columns, dataset = context.dataset.columns, context.dataset
    error = builder.errors.get(slot)
    widths, heights, _ = columns.image_sides(one)
    sides = list(zip(widths.tolist(), heights.tolist(), strict=True))
    shown: dict[str, Any] = {
        "key": columns.key(number),
        "source": columns.sources(one)[0],
        "dataset": dataset.dataset_names(one)[0],
        "sample": number,
        "shard": context.shard_name(number),
        "valid": bool(job.share.valid[slot]) and error is None,
        "error": "" if error is None else error.reason,
        "images": [{"width": width, "height": height} for width, height in sides],
        "videos": [],
        "turns": 0,
    }
    frames: set[int] = set()  # images that are frames of a video
    read = _read(context, one)
    if isinstance(read, SampleParts):
        record, max_frames = read.record, dataset.parts[int(dataset.kinds(one)[0])].max_frames
        shown["text"] = sample_text(read.caption, record)[:_MOST_TEXT]
        shown["record"] = json.dumps(record, ensure_ascii=False, indent=1)[:_MOST_TEXT]
        turns = raw_turns(record) if isinstance(record, Mapping) else None
        shown["turns"] = len(turns) if turns else 1
        with suppress(DecodeError):  # which is said of its text
            videos = read_videos(record, len(sides), max_frames) if read.images else ()
            for video in videos:
                frames.update(range(video.first, video.first + len(video.times)))
                shown["videos"].append(_strip(video, read))
        for at, (_, data) in enumerate(read.images):
            if at not in frames:
                shown["images"][at]["original"] = show_file(data)
        if context.tokens is not None:
            text = SampleText(read.caption, record, len(sides), max_frames)
            shown["tokens"] = _tokens(context.tokens.kinds_of(one)[0], text, number)
    else:
        shown["error"] = shown["error"] or read
    if builder.images is not None and error is None:
        first = int(builder.images.first[slot])
        transform, images = builder.images.pictures(slot)
        for at, pictures in enumerate(images):
            image = shown["images"][at]
            if at not in frames:
                image["columns"] = transform.columns(image["width"], image["height"])
                image["pictures"] = show_values(pictures, transform.spec)
            image["size"] = f"{pictures.shape[3]}x{pictures.shape[2]}"
            if transform.spec.one_size:
                image["seen"] = _seen(batch[GEOMETRY][first + at].tolist(), pictures.shape)
    return shown


def _read(context: BatchContext, one: Int64) -> SampleParts | str:
    """Return the members of a sample, or why they cannot be read; arrays hold no encoded images."""
    rows = read_rows(context.dataset, one)
    decoded = context.arrays is not None and context.arrays.hold(rows.parts)[0]
    members = wanted_members(rows.of_sample(0), 0 if decoded else int(rows.counts[0]))
    parts = SampleParts()
    try:
        contents = context.store.read(int(rows.shards[0]), members)
        for member, data in zip(members, contents, strict=True):
            parts.add(member, data)
    except DatapipeError as error:
        return error.reason if isinstance(error, SampleError) else str(error)
    return parts


def _strip(video: Video, read: SampleParts) -> dict[str, Any]:
    """Return a video with small pictures of its frames, no more than `_MOST_FRAMES`."""
    count = len(video.times)
    chosen = np.flatnonzero(is_kept(np.arange(count), np.full(count, count), _MOST_FRAMES))
    frames = [
        {
            "image": video.first + at,
            "time": video.times[at],
            "picture": show_file(read.images[video.first + at][1], FRAME),
        }
        for at in chosen.tolist()
        if video.first + at < len(read.images)
    ]
    return {"name": video.name, "duration": video.duration, "count": count, "frames": frames}


def _tokens(kind: TextKind, text: SampleText, number: int) -> list[dict[str, Any]] | str:
    """Return the tokens of a sample, of a preference pair those of both answers; or an error."""
    (encoded,) = kind.rule.encoder.encode([text])
    if isinstance(encoded, SampleError):
        return encoded.reason
    texts = [encoded] if encoded.rejected is None else [encoded, encoded.rejected]
    return [_show_tokens(kind, each, number - kind.first) for each in texts]


def _seen(facts: list[float], shape: Any) -> list[float]:
    """Return which part of the original is seen: left, top, right and bottom as shares of it."""
    scale_x, scale_y, left, top, width, height = facts
    if not scale_x or not scale_y:
        return []
    across = sorted((at - left) / scale_x / width for at in (0, shape[3]))
    down = sorted((at - top) / scale_y / height for at in (0, shape[2]))
    ends = (across[0], down[0], across[1], down[1])
    return [round(min(max(share, 0), 1), 4) for share in ends]


def _show_tokens(kind: TextKind, encoded: EncodedText, sample: int) -> dict[str, Any]:
    """Return the tokens of a text for the page; `sample` is its number in the dataset.

    `pieces` are pairs of a text and its bits; the tokens of an image that stand together are one,
    and its text is their number. `kept` is how many tokens batches have, of `total`.
    """
    encoder, limit = kind.rule.encoder, kind.rule.limit
    images, frames = kind.image_runs(sample), kind.frames(sample)
    whole = expand(encoded, images)
    kept = expand(encoded, images, limit, encoder.image_wrap, frames, encoder.video_wrap)
    return {
        "pieces": _pieces(encoder, whole, len(kept.input_ids)),
        "total": len(whole.input_ids),
        "kept": len(kept.input_ids),
        "learnt": int((kept.labels != IGNORE).sum()),
        "images_cut": whole.images - kept.images,
        "shown": min(len(whole.input_ids), _MOST_TOKENS),
    }


def _pieces(encoder: TextEncoder, text: Expanded, kept: int) -> list[tuple[str, int]]:
    ids, labels = text.input_ids[:_MOST_TOKENS].tolist(), text.labels[:_MOST_TOKENS].tolist()
    pieces: list[tuple[str, int]] = []
    at = 0
    while at < len(ids):
        bits = CUT if at >= kept else 0
        if ids[at] in (encoder.image_id, encoder.video_id):
            end = len(ids) if bits else min(kept, len(ids))
            stop = next((n for n in range(at, end) if ids[n] != ids[at]), end)
            pieces.append((f"{stop - at:,}", bits | IMAGE))
        else:
            piece, special, stop = _spelt(encoder, ids, at)
            bits |= (SPECIAL if special else 0) | (LEARNT if labels[at] != IGNORE else 0)
            pieces.append((piece, bits))
        at = stop
    return pieces


def _spelt(encoder: TextEncoder, ids: list[int], at: int) -> tuple[str, bool, int]:
    """Return the text of a token, whether it is special, and the index of the next.

    Tokens that share a character are one text.
    """
    for stop in range(at + 1, min(at + _JOINED, len(ids)) + 1):
        text, special = encoder.spell(ids[at:stop])
        if "\ufffd" not in text:
            return text, special, stop
    return *encoder.spell(ids[at : at + 1]), at + 1
