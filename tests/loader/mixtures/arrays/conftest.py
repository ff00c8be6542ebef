"""Shards and arrays of three datasets, and loaders of their mixtures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import skimage
from PIL import Image

import datapipe
from datapipe import ImageSpec, Loader, convert_dataset

MakeText = Callable[..., datapipe.TextSpec]

SPEC = ImageSpec(size=24)
WEIGHTS = {"a": 0.5, "b": 0.2, "c": 0.3}
META = ("key", "valid", "dataset", "sample")


@pytest.fixture(scope="module")
def folders(
    packed: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Shards `a`, `b` and `c`, and the same as arrays: `A` with tokens, `B` without, `T` of texts.

    Samples of `c` and `T` have no images.
    """
    root = tmp_path_factory.mktemp("mixture")
    shards = {"a": packed}
    for name, samples, images in (("b", 23, True), ("c", 9, False)):
        shards[name] = root / name
        datapipe.pack_dataset(_raw(root / "raw" / name, samples, images), root / name, shard_size=5)
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=6)
    convert_dataset(packed, root / "A", image=SPEC, text=text)
    convert_dataset(root / "b", root / "B", image=SPEC)
    convert_dataset(root / "c", root / "T", text=text)
    return shards | {name: root / name for name in "ABT"}


def _raw(root: Path, samples: int, images: bool) -> Path:
    root.mkdir(parents=True)
    photo = Image.open(Path(skimage.__file__).parent / "data/coffee.png").convert("RGB")
    records = []
    for number in range(samples):
        names = [f"{number}-{image}.jpg" for image in range((number + 1) % 3 if images else 0)]
        for left, name in enumerate(names, number):
            photo.crop((9 * left, left, 9 * left + 100, left + 80 + number)).save(root / name)
        question = "<image>" * len(names) + f"Which of {root.name} is {number}?"
        turns = [("human", question), ("gpt", f"{root.name} " * (number % 4 + 1))]
        record: dict[str, Any] = {
            "id": f"{root.name}-{number}",
            "conversations": [{"from": who, "value": said} for who, said in turns],
        }
        if names:
            record["image"] = names if len(names) > 1 else names[0]
        records.append(record)
    (root / "data.json").write_text(json.dumps(records))
    return root


@pytest.fixture
def mix(folders: dict[str, Path]) -> Callable[..., Loader]:
    """Makes a loader of datasets `a`, `b` and `c`, each in the folder of a letter.

    `given` has options of datasets, by name.
    """

    def make(letters: str, given: dict[str, Any] | None = None, **changes: Any) -> Loader:
        unit = {} if changes.keys() & {"pack", "max_tokens"} else {"batch_size": 6}
        options: dict[str, Any] = (
            {"num_workers": 2, "meta": META, "image": SPEC, "epochs": 2} | unit | changes
        )
        entries = {
            name: {"path": folders[letter], "weight": WEIGHTS[name], **(given or {}).get(name, {})}
            for name, letter in zip(WEIGHTS, letters, strict=False)
        }
        return datapipe.make_loader(entries, **options)

    return make
