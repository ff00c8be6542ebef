"""One use of a sample, as the tiers of a cache see it."""

from __future__ import annotations

from typing import NamedTuple


class Use(NamedTuple):
    """A sample that is used, and where tiers of fixed size would have it.

    Looking a place up takes 30 µs for one sample and little more for a batch of them, so it is done
    for all at once.

    Attributes:
        sample: its number.
        next: when it is used again, as `NextUse` compares it.
        memory, disk, text: its place in these tiers, -1 where it has none.
    """

    sample: int
    next: int = 0
    memory: int = -1
    disk: int = -1
    text: int = -1
