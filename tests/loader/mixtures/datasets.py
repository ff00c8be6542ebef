"""Datasets that the tests of mixtures mix, and what they look at in batches."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datapipe import ImageSpec

SIZES = {"chats": 29, "captions": 17, "drawings": 5, "one": 1}
META = ("dataset", "key", "valid", "sample", "num_items_in_batch")
SMALL = ImageSpec(size=16)
Draw = tuple[str, str]


def draws(batches: Iterable[Any]) -> list[Draw]:
    """The dataset and key of every valid sample of some batches."""
    return [
        (name, key)
        for batch in batches
        for name, key, valid in zip(
            batch["dataset"], batch["key"], batch["valid"].tolist(), strict=True
        )
        if valid
    ]


def pixels_of(batch: Any) -> bytes:
    """The images of a batch; a batch without any has no key for them."""
    return batch["pixel_values"].numpy().tobytes() if "pixel_values" in batch else b""


def of(name: str, found: Iterable[Draw]) -> list[str]:
    return [key for own, key in found if own == name]


def plain(*names: str, folders: dict[str, Path], **options: Any) -> dict[str, Any]:
    return {name: {"path": folders[name], "weight": 1.0} | options for name in names}
