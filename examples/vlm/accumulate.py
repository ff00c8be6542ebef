"""Batches whose gradients are added up for one step of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

Batch = dict[str, Any]

LABELS = "num_items_in_batch"
"""Key of a batch's number of labels over all ranks; the plan knows it, no rank is asked."""


def groups_of(
    batches: Iterable[Batch],
    *,
    count: int,
    labels: int,
    ends: Callable[[], bool] = lambda: False,
) -> Generator[list[Batch], None, None]:
    """Batches in groups, none of which is taken before it is asked for.

    A group is held as a whole before its first batch is trained on, so that the loss of each is
    divided by the labels of all: means of means would weigh a token of a short batch more.

    Args:
        batches: with `num_items_in_batch`.
        count: batches of a group, unless labels decide.
        labels: if not 0, groups are as small as they can be with this number of labels.
        ends: called after each batch; a group ends where it returns True, full or not.
    """
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        full = labels_of(group) >= labels if labels else len(group) == count
        if full or ends():
            yield group
            group = []
    if group:
        yield group


def labels_of(group: list[Batch]) -> int:
    """Labels of a group over all ranks; what its losses are divided by."""
    return max(1, sum(int(batch[LABELS]) for batch in group))
