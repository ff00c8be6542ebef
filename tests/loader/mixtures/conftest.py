"""A mixture of four small datasets, and its loaders."""

import json

import pytest
from PIL import Image

import datapipe
from datapipe import ImageSpec

from .datasets import META, SIZES, SMALL


@pytest.fixture(scope="module")
def folders(tmp_path_factory, make_folder, encode, crop):
    """Chats with none to two images, captions, drawings in PNG, and a dataset of one sample."""
    root = tmp_path_factory.mktemp("mixture")
    raw = root / "raw"
    for name in ("chats", "drawings"):
        (raw / name).mkdir(parents=True)
    records = []
    for number in range(SIZES["chats"]):
        names = [f"{number}-{image}.jpg" for image in range((1, 1, 2, 0)[number % 4])]
        for image, name in enumerate(names):
            content = encode(crop(size=(40 + 2 * number, 30 + image), left=number), quality=80)
            (raw / "chats" / name).write_bytes(content)
        turns = [
            {"from": "human", "value": "<image>" * len(names) + f"What is number {number}?"},
            {"from": "gpt", "value": "It is " + f"{number}, " * (1 + number % 9)},
        ]
        record = {"id": f"id-{number}", "conversations": turns}
        records.append(record | ({"image": names} if names else {}))
    (raw / "chats" / "data.json").write_text(json.dumps(records))
    for number in range(SIZES["drawings"]):
        drawing = Image.new("RGB", (24 + 8 * number, 40), (40 * number, 90, 200))
        (raw / "drawings" / f"{number}.png").write_bytes(encode(drawing, "PNG"))
        caption = f"a drawing, the {number + 1}. of five " * 3
        (raw / "drawings" / f"{number}.txt").write_text(caption)
    make_folder(raw / "captions", SIZES["captions"])
    make_folder(raw / "one", 1)
    for name in SIZES:
        datapipe.pack_dataset(raw / name, root / name, shard_size=7)
    return {name: root / name for name in SIZES}


@pytest.fixture(scope="module")
def caption(tokenizer):
    return datapipe.TextSpec(tokenizer=tokenizer, template="caption", image_tokens=3)


@pytest.fixture(scope="module")
def chatml(tokenizer):
    return datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=4)


@pytest.fixture(scope="module")
def mixture(folders, caption, chatml):
    """A mixture of all datasets, with texts and images of their own; `options` are of some."""

    def make(*, parts=SIZES, **options):
        whole = {
            "chats": {"weight": 0.5, "text": chatml},
            "captions": {
                "weight": 0.3,
                "image": ImageSpec(size=16, random_crop=(0.3, 1.0), flip=0.5),
            },
            "drawings": {"weight": 0.15, "image": ImageSpec(size=16, flip=0.5)},
            "one": {"weight": 0.05},
        }
        return {
            name: whole[name] | {"path": folders[name]} | options.get(name, {}) for name in parts
        }

    return make


@pytest.fixture
def make(mixture, caption):
    """Makes loaders of the mixture of all datasets."""

    def made(given=None, **options):
        if not options.keys() & {"pack", "max_tokens"}:
            options.setdefault("batch_size", 4)
        defaults = {"text": caption, "image": SMALL, "meta": META, "seed": 3, "num_workers": 0}
        if "text" in options:
            defaults["meta"] = META[:-1]
        return datapipe.make_loader(given or mixture(), **defaults | options)

    return made
