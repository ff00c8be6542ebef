"""Activation checkpointing: the blocks whose activations are computed again, not kept."""

from __future__ import annotations

from typing import NamedTuple

KNOWN = "all, N (every N-th block), blocks such as 0,3,7 (a single one: 3,), or sequential:N"


class Recompute(NamedTuple):
    """Blocks of a transformer that are computed again in the backward pass.

    Attributes:
        blocks: their numbers, from 0; each keeps its input alone.
        segments: if not 0, runs of blocks, each of which but the last keeps its input alone.
    """

    blocks: frozenset[int] = frozenset()
    segments: int = 0


NONE = Recompute()


def read_recompute(text: str, layers: int, *, whole: bool = True) -> Recompute:
    """Return the blocks that `--recompute` names, of a transformer with so many layers.

    The text is "" for none, or one of `KNOWN`. A list of blocks means the `whole` model's language
    model alone.
    """
    if not text:
        return NONE
    if text == "all":
        return Recompute(frozenset(range(layers)))
    kind, _, number = text.rpartition(":")
    if kind not in ("", "sequential") or not all(n.isdecimal() for n in _numbers(number)):
        raise ValueError(f"recompute {text!r}: give {KNOWN}")
    if kind:
        if "," in number or not 1 <= int(number) <= layers:
            raise ValueError(f"recompute {text!r}: {layers} blocks make 1 to {layers} runs")
        return Recompute(segments=int(number))
    if "," not in text:
        if not int(text):
            raise ValueError("recompute '0': give 1 or more; every N-th block is computed again")
        if whole and int(text) > layers:
            raise ValueError(
                f"recompute {text!r}: there are {layers} blocks; give 1 to {layers} for every N-th "
                "of them, or '0,' for the first alone"
            )
        return Recompute(frozenset(range(0, layers, int(text))))
    chosen = frozenset(map(int, _numbers(text)))
    if not whole:
        return NONE
    if max(chosen) >= layers:
        raise ValueError(
            f"recompute {text!r}: there are {layers} blocks; give numbers from 0 to {layers - 1}"
        )
    return Recompute(chosen)


def _numbers(text: str) -> list[str]:
    return text.removesuffix(",").split(",")
