"""Activation checkpointing: the blocks whose activations are computed again, not kept."""

from typing import NamedTuple

KNOWN = "all, N (every N-th block), blocks such as 0,3,7 (a single one: 3,), or sequential:N"


class Recompute(NamedTuple):
    """Blocks of a transformer, from 0, of which each keeps its input alone.

    `segments`, if not 0, are runs of blocks, each of which but the last keeps its input alone.
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
        text = "1"
    kind, _, number = text.rpartition(":")
    chosen = number.removesuffix(",").split(",")
    if kind not in ("", "sequential") or not all(each.isdecimal() for each in chosen):
        raise ValueError(f"recompute {text!r}: give {KNOWN}")
    most = max(map(int, chosen))
    if kind:
        if "," in number or not 1 <= most <= layers:
            raise ValueError(f"recompute {text!r}: {layers} blocks make 1 to {layers} runs")
        return Recompute(segments=most)
    if "," in text:
        if whole and most >= layers:
            raise ValueError(
                f"recompute {text!r}: there are {layers} blocks; give numbers from 0 to "
                f"{layers - 1}"
            )
        return Recompute(frozenset(map(int, chosen))) if whole else NONE
    if not most:
        raise ValueError("recompute '0': give 1 or more; every N-th block is computed again")
    if whole and most > layers:
        raise ValueError(
            f"recompute {text!r}: there are {layers} blocks; give 1 to {layers} for every N-th of "
            "them, or '0,' for the first alone"
        )
    return Recompute(frozenset(range(0, layers, most)))
