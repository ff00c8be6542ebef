"""The data that golden configurations read, which are checked in.

`data/` holds what version 0.1.0 wrote, so nothing of it is made when tests run:

- `raw.zip`: images drawn from NumPy seeds as JPEG, PNG and WebP, conversations about them as LLaVA
  has them, captions beside images, and a table of captions. Encoders of another version may write
  other bytes; these stay.
- `tokenizer.json`: a byte-level BPE trained on the conversations, with the special tokens of
  several model families.
- `shards.zip`: the conversations, packed; with the columns, token counts and filters that loaders
  derived from them.
- `arrays.zip`: the same converted to arrays, with tokens, and what was derived from these.
- `cache.zip`: a disk cache of decoded images of the shards.
- `videos.zip`: a tar of stills and of frames of videos, as packing writes them, without an index.

`python -m tests.golden.record --data` makes shards, arrays and cache anew, for a format that is not
read any more. The other files are given; `git log -S_make_raw` has the program that drew them.
"""

import json
import shutil
import tarfile
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import datapipe

from ..loader.damage import overwrite_image

DATA = Path(__file__).parent / "data"
TOKENIZER = DATA / "tokenizer.json"
SHARD_SIZE = 9
DAMAGED = (5, 22, 23)

WORDS = (
    *("a", "cat", "sits", "beside", "the", "red", "boat", "under", "cloudy", "skies", "while"),
    *("seven", "children", "count", "small", "stones", "naïve", "café", "Größe", "日本語", "текст"),
    *("🙂", "x=3.14;", "one", "two", "three", "yes", "no", "left", "right", "<b>bold</b>", "[1]"),
    "{2}",
)

CONVERTED = datapipe.ImageSpec(size=16)
"""Images of the arrays and of the disk cache."""


def conversation_tokens(**changes: Any) -> datapipe.TextSpec:
    """Tokens of ChatML with six tokens an image."""
    options: dict[str, Any] = {"template": "chatml", "image_tokens": 6} | changes
    return datapipe.TextSpec(tokenizer=TOKENIZER, **options)


class Data:
    """Folders of data.

    Args:
        folder: an empty folder for them.

    Attributes:
        raw: `chat/data.json`, `folder/` and `table.jsonl`.
        served: URL of the shards, where they are served.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.served: str | None = None
        names = ("raw", "shards", "arrays", "cache", "videos")
        self.raw, self.shards, self.arrays, self.cache, self.videos = map(self._unpack, names)

    @cached_property
    def tars(self) -> Path:
        """Tars as Python writes them, without an index."""
        folder = self.folder / "tars"
        folder.mkdir()
        files = sorted((self.raw / "folder").iterdir())
        for shard, part in enumerate((files[:14], files[14:])):
            with tarfile.open(folder / f"part-{shard:03d}.tar", "w") as tar:
                for file in part:
                    tar.add(file, file.name)
        return folder

    @cached_property
    def captions(self) -> Path:
        """Images with a caption beside each, packed now."""
        datapipe.pack_dataset(
            self.raw / "folder", self.folder / "captions", shard_size=5, workers=1
        )
        return self.folder / "captions"

    @cached_property
    def shrunk(self) -> Path:
        """A table of captions and images, which are made smaller, packed now."""
        datapipe.pack_dataset(
            self.raw / "table.jsonl", self.folder / "shrunk", max_side=32, quality=90, workers=1
        )
        return self.folder / "shrunk"

    @cached_property
    def pairs(self) -> Path:
        """The conversations with a worse answer to the last question too, packed now."""
        chat = self.raw / "chat"
        records = json.loads((chat / "data.json").read_text("utf-8"))
        pairs = [_as_pair(number, record) for number, record in enumerate(records)]
        path = self.folder / "pairs.json"
        path.write_text(json.dumps(pairs), "utf-8")
        datapipe.pack_dataset(
            path, self.folder / "pairs", image_root=chat, shard_size=SHARD_SIZE, workers=1
        )
        return self.folder / "pairs"

    @cached_property
    def damaged(self) -> Path:
        """The shards with the second half of an image of some samples overwritten."""
        folder = Path(shutil.copytree(self.shards, self.folder / "damaged"))
        for sample in DAMAGED:
            overwrite_image(folder, sample)
        return folder

    def _unpack(self, name: str) -> Path:
        with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
            archive.extractall(self.folder / name)
        return self.folder / name


def make_data(folder: Path) -> None:
    """Make what is packed and converted in `data/` anew, by way of an empty folder."""
    shards, arrays = folder / "shards", folder / "arrays"
    raw = Data(folder / "given").raw
    datapipe.pack_dataset(raw / "chat", shards, shard_size=SHARD_SIZE, workers=1)
    text = conversation_tokens()
    datapipe.convert_dataset(shards, arrays, image=CONVERTED, text=text, workers=1)
    common: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "rank": 0, "world_size": 1}
    cache = datapipe.CacheSpec(disk=folder / "cache", disk_size="16MB")
    list(datapipe.make_loader(shards, image=CONVERTED, cache=cache, **common))
    # What loaders derive is in folders that were written to: columns, token counts, filters.
    for source in (shards, arrays):
        list(datapipe.make_loader(source, image=None, text=text, where="width > 40", **common))
    for made in (shards, arrays, folder / "cache"):
        _zip(made, DATA / f"{made.name}.zip")


def _zip(folder: Path, path: Path) -> None:
    """Write a folder, so that equal files give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                info = zipfile.ZipInfo(file.relative_to(folder).as_posix())
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, file.read_bytes())


def _as_pair(number: int, record: dict[str, Any]) -> dict[str, Any]:
    *asked, answer = record["conversations"]
    rejected = {"from": "gpt", "value": _sentence(300 + number, 3 + number % 17)}
    return {**record, "conversations": asked, "chosen": answer, "rejected": rejected}


def _sentence(seed: int, words: int) -> str:
    rng = np.random.default_rng((2, seed))
    return " ".join(WORDS[index] for index in rng.integers(len(WORDS), size=words).tolist()) + "."
