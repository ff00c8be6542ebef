"""A mixture of four small datasets, and its loaders."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe import ImageSpec, Loader

from .datasets import META, SIZES, SMALL, Make, write_chats, write_drawings


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, make_folder: Any, encode: Any, crop: Any
) -> dict[str, Path]:
    """Chats with none to two images, captions, drawings in PNG, and a dataset of one sample."""
    root = tmp_path_factory.mktemp("mixture")
    raw = root / "raw"
    write_chats(raw / "chats", encode, crop)
    make_folder(raw / "captions", SIZES["captions"])
    write_drawings(raw / "drawings", encode)
    make_folder(raw / "one", 1)
    for name in SIZES:
        datapipe.pack_dataset(raw / name, root / name, shard_size=7)
    return {name: root / name for name in SIZES}


@pytest.fixture(scope="module")
def caption(tokenizer: Path) -> datapipe.TextSpec:
    return datapipe.TextSpec(tokenizer=tokenizer, template="caption", image_tokens=3)


@pytest.fixture(scope="module")
def chatml(tokenizer: Path) -> datapipe.TextSpec:
    return datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=4)


@pytest.fixture(scope="module")
def mixture(
    folders: dict[str, Path], caption: datapipe.TextSpec, chatml: datapipe.TextSpec
) -> Callable[..., dict[str, Any]]:
    """A mixture of all datasets, with texts and images of their own; `options` are of some."""

    def make(*, parts: Iterable[str] = SIZES, **options: dict[str, Any]) -> dict[str, Any]:
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
def make(mixture: Any, caption: datapipe.TextSpec) -> Make:
    """Makes loaders of the mixture of all datasets."""

    def made(given: Any = None, **options: Any) -> Loader:
        if not options.keys() & {"pack", "max_tokens"}:
            options.setdefault("batch_size", 4)
        defaults = {"text": caption, "image": SMALL, "meta": META, "seed": 3, "num_workers": 0}
        if "text" in options:
            defaults["meta"] = META[:-1]
        return datapipe.make_loader(given or mixture(), **defaults | options)

    return made
