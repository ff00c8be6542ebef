"""Tokens of a sample as pieces of text, with what becomes of each."""

from __future__ import annotations

from typing import Any

from datapipe.array_types import Int64
from datapipe.text.encode import EncodedText, TextEncoder
from datapipe.text.frames import Frames
from datapipe.text.truncate import IGNORE, Expanded, expand

LEARNT, IMAGE, CUT, SPECIAL = 1, 2, 4, 8
"""Bits of a piece: the model learns to write it; it stands for an image; truncation removed it; it
is a token that no text spells."""

_MOST = 4096  # tokens of a sample that are shown
_JOINED = 6  # tokens that may make up one character


def show_tokens(
    encoder: TextEncoder,
    encoded: EncodedText,
    images: list[Int64],
    limit: int | None,
    frames: Frames | None,
) -> dict[str, Any]:
    """Return the tokens of a text for the page.

    `pieces` are pairs of a text and its bits; the tokens of an image that stand together are one,
    and its text is their number. `kept` is how many tokens batches have, of `total`.
    """
    whole = expand(encoded, images)
    kept = expand(encoded, images, limit, encoder.image_wrap, frames, encoder.video_wrap)
    return {
        "pieces": _pieces(encoder, whole, len(kept.input_ids)),
        "total": len(whole.input_ids),
        "kept": len(kept.input_ids),
        "learnt": int((kept.labels != IGNORE).sum()),
        "images_cut": whole.images - kept.images,
        "shown": min(len(whole.input_ids), _MOST),
    }


def _pieces(encoder: TextEncoder, text: Expanded, kept: int) -> list[tuple[str, int]]:
    ids, labels = text.input_ids[:_MOST].tolist(), text.labels[:_MOST].tolist()
    pieces: list[tuple[str, int]] = []
    at = 0
    while at < len(ids):
        bits = CUT if at >= kept else 0
        if ids[at] in (encoder.image_id, encoder.video_id):
            end = len(ids) if bits else kept
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
