"""The data that golden configurations read: checked in, and how it was made.

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

`python -m tests.golden.record --data` makes all of it anew, for a format that is not read any more.
"""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import datapipe

from ..loader.video_shards import FRAMES, members_of

DATA = Path(__file__).parent / "data"
TOKENIZER = DATA / "tokenizer.json"
SAMPLES = 41
SHARD_SIZE = 9
DAMAGED = ("000000005", "000000022", "000000023")

SPECIAL = (
    *("<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>"),
    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<img>", "<IMG_CONTEXT>", "</img>"),
)
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
        (self.folder / "tars").mkdir()
        files = sorted((self.raw / "folder").iterdir())
        for shard, part in enumerate((files[:14], files[14:])):
            _write_tar(self.folder / "tars" / f"part-{shard:03d}.tar", part)
        return self.folder / "tars"

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
        for path in sorted(folder.glob("*.tar")):
            with tarfile.open(path) as tar:
                members = {name.partition(".")[0]: name for name in reversed(tar.getnames())}
                found = [tar.getmember(members[key]) for key in DAMAGED if key in members]
            with path.open("r+b") as file:
                for member in found:
                    file.seek(member.offset_data + member.size // 2)
                    file.write(bytes(member.size - member.size // 2))
        return folder

    def _unpack(self, name: str) -> Path:
        with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
            archive.extractall(self.folder / name)
        return self.folder / name


def make_data(folder: Path) -> None:
    """Make everything in `data/` anew, by way of an empty folder."""
    DATA.mkdir(exist_ok=True)
    raw, shards, arrays = folder / "raw", folder / "shards", folder / "arrays"
    _make_raw(raw)
    _make_tokenizer(raw)
    datapipe.pack_dataset(raw / "chat", shards, shard_size=SHARD_SIZE, workers=1)
    text = conversation_tokens()
    datapipe.convert_dataset(shards, arrays, image=CONVERTED, text=text, workers=1)
    common: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "rank": 0, "world_size": 1}
    cache = datapipe.CacheSpec(disk=folder / "cache", disk_size="16MB")
    list(datapipe.make_loader(shards, image=CONVERTED, cache=cache, **common))
    # What loaders derive is in folders that were written to: columns, token counts, filters.
    for source in (shards, arrays):
        list(datapipe.make_loader(source, image=None, text=text, where="width > 40", **common))
    make_videos(folder / "videos")
    for made in (raw, shards, arrays, folder / "cache", folder / "videos"):
        _zip(made, DATA / f"{made.name}.zip")


def make_videos(folder: Path) -> None:
    """Write the samples of `video_shards` with pictures in place of their plain frames."""
    folder.mkdir(parents=True)
    files = []
    for key in FRAMES:
        for number, (ext, content) in enumerate(members_of(key).items()):
            files.append(folder / f"{key}.{ext}")
            if ext == "json":
                files[-1].write_bytes(content)
            else:
                rng = np.random.default_rng((4, int(key), number))
                _picture(rng, 48, 32).save(files[-1], "JPEG", quality=80)
    _write_tar(folder / "shard-000000.tar", files)
    for path in files:
        path.unlink()


def _zip(folder: Path, path: Path) -> None:
    """Pack a folder, so that equal files give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                info = zipfile.ZipInfo(file.relative_to(folder).as_posix())
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, file.read_bytes())


def _make_raw(raw: Path) -> None:
    chat, captions = raw / "chat", raw / "folder"
    (chat / "images").mkdir(parents=True)
    captions.mkdir()
    records = [_record(number, chat) for number in range(SAMPLES)]
    (chat / "data.json").write_text(json.dumps(records, ensure_ascii=False, indent=1), "utf-8")
    for number in range(12):
        content, ending = _encoded(100 + number)
        (captions / f"{number:02d}.{ending}").write_bytes(content)
        (captions / f"{number:02d}.txt").write_text(_sentence(100 + number, 5), "utf-8")
    rows = [
        {"image": f"folder/{path.name}", "caption": _sentence(200 + number, 8), "rating": number}
        for number, path in enumerate(
            path for path in sorted(captions.iterdir()) if path.suffix != ".txt"
        )
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (raw / "table.jsonl").write_text(lines, "utf-8")


def _write_tar(path: Path, files: Iterable[Path]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for file in files:
            content = file.read_bytes()
            info = tarfile.TarInfo(file.name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _record(number: int, folder: Path) -> dict[str, Any]:
    """A conversation about none to three images; some samples are much longer than others."""
    rng = np.random.default_rng((1, number))
    images = 0 if number % 10 == 9 else 3 if number % 13 == 6 else 2 if number % 7 == 3 else 1
    names = []
    for image in range(images):
        content, ending = _encoded(10 * number + image)
        names.append(f"images/{number:03d}-{image}.{ending}")
        (folder / names[-1]).write_bytes(content)
    turns = []
    for turn in range(1 + int(rng.integers(3))):
        marks = "<image>" * images if turn == 0 else ""
        if number % 8 == 5 and turn == 0:
            marks = marks.replace("<image>", "<image>\n")
        turns.append({"from": "human", "value": marks + _sentence(7 * number + turn, 6)})
        words = 60 if number % 11 == 4 else 3 + int(rng.integers(20))
        turns.append({"from": "gpt", "value": _sentence(7 * number + turn + 3, words)})
    record: dict[str, Any] = {"id": f"id-{number}", "conversations": turns}
    if number % 3 == 0:
        record["score"] = number / 4
    if names:
        record["image"] = names[0] if images == 1 else names
    return record


def _as_pair(number: int, record: dict[str, Any]) -> dict[str, Any]:
    *asked, answer = record["conversations"]
    rejected = {"from": "gpt", "value": _sentence(300 + number, 3 + number % 17)}
    return {**record, "conversations": asked, "chosen": answer, "rejected": rejected}


def _sentence(seed: int, words: int) -> str:
    rng = np.random.default_rng((2, seed))
    return " ".join(WORDS[index] for index in rng.integers(len(WORDS), size=words).tolist()) + "."


_FORMS = (0, 0, 0, 0, 1, 1, 3, 3, 4, 4, 5, 7, 7, 8, 10, 2, 6, 9, 11)


def _encoded(seed: int) -> tuple[bytes, str]:
    """An image file and its ending; every form that is kept as it is when packed."""
    rng = np.random.default_rng((3, seed))
    width, height = (int(side) for side in rng.integers(20, 81, size=2))
    image = _picture(rng, width, height)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    forms: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (image, "jpeg", {"quality": 80}),
        (image, "jpeg", {"quality": 90, "subsampling": 0}),
        (image, "png", {"optimize": True}),
        (image, "jpeg", {"quality": 75, "progressive": True}),
        (image, "webp", {"quality": 80}),
        (image.convert("L"), "jpeg", {"quality": 80}),
        (image.quantize(16), "png", {}),
        (image, "jpeg", {"quality": 85, "exif": rotated.tobytes()}),
        (image.convert("CMYK"), "jpeg", {"quality": 80}),
        (image.convert("RGBA"), "png", {}),
        (image, "webp", {"lossless": True}),
        (image.convert("L").convert("I;16"), "png", {}),
    ]
    chosen, kind, options = forms[_FORMS[int(rng.integers(len(_FORMS)))]]
    if chosen.mode == "RGBA":
        chosen.putalpha(image.convert("L"))
    buffer = io.BytesIO()
    chosen.save(buffer, kind, **options)
    return buffer.getvalue(), "jpg" if kind == "jpeg" else kind


def _picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Waves of random directions, and a sharp rectangle."""
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for _ in range(3):
        a, b, c = rng.uniform(0.02, 0.2), rng.uniform(0.02, 0.2), rng.uniform(0, 6)
        planes.append(127 + 90 * np.sin(a * x + b * y + c))
    values = np.stack(planes, axis=-1)
    top, left = int(rng.integers(height // 2)), int(rng.integers(width // 2))
    values[top : top + height // 3, left : left + width // 3] = rng.integers(0, 256, 3)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def _make_tokenizer(raw: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL),
    )
    records = json.loads((raw / "chat" / "data.json").read_text("utf-8"))
    texts = [turn["value"] for record in records for turn in record["conversations"]]
    made.train_from_iterator([*texts, "user assistant system"], trainer)
    made.save(str(TOKENIZER))
