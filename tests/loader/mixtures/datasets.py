"""Datasets that the tests of mixtures mix, and what they look at in batches."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from datapipe import ImageSpec

SIZES = {"chats": 29, "captions": 17, "drawings": 5, "one": 1}
META = ("dataset", "key", "valid", "sample", "num_items_in_batch")
SMALL = ImageSpec(size=16)
Draw = tuple[str, str]


def write_chats(root: Path, encode: Any, crop: Any) -> None:
    root.mkdir(parents=True)
    records = []
    for number in range(SIZES["chats"]):
        count = (1, 1, 2, 0)[number % 4]
        for image in range(count):
            content = encode(crop(size=(40 + 2 * number, 30 + image), left=number), quality=80)
            (root / f"{number}-{image}.jpg").write_bytes(content)
        names = [f"{number}-{image}.jpg" for image in range(count)]
        turns = [
            {"from": "human", "value": "<image>" * count + f"What is number {number}?"},
            {"from": "gpt", "value": "It is " + f"{number}, " * (1 + number % 9)},
        ]
        record = {"id": f"id-{number}", "conversations": turns}
        records.append(record | ({"image": names} if names else {}))
    (root / "data.json").write_text(json.dumps(records))


def write_drawings(root: Path, encode: Any) -> None:
    root.mkdir(parents=True)
    for number in range(SIZES["drawings"]):
        image = Image.new("RGB", (24 + 8 * number, 40), (40 * number, 90, 200))
        (root / f"{number}.png").write_bytes(encode(image, "PNG"))
        (root / f"{number}.txt").write_text(f"a drawing, the {number + 1}. of five " * 3)


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
