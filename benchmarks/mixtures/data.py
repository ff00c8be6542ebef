"""Datasets for mixtures: synthetic ones of a million samples without bytes, and small real ones.

A few distinct datasets are made, and linked into as many folders as are asked for. Each folder has
a manifest of its own, so each folder counts as a different dataset.
"""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.common import made_once
from benchmarks.data import Photos
from datapipe.array_types import Int64
from datapipe.index.columns import open_columns
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import (
    MANIFEST,
    Contribution,
    Manifest,
    Shard,
    read_manifest,
    write_manifest,
)
from datapipe.index.parquet import SCHEMA, file_sha256
from datapipe.index.tokens.counting import PartFiles, TokenPart, open_or_count
from datapipe.pack.pack_dataset import pack_dataset
from datapipe.text.encode import TextEncoder
from datapipe.text.spec import TextSpec
from examples.vlm.data.texts import byte_tokenizer

HOME = Path("build/bench/mixtures")
IMAGE_TOKENS = 144
CAPACITY = 8192
SIDE = 32  # pixels of the small datasets' images
SPREAD = 8  # of weights and sizes: the largest dataset has so many times the smallest

_NAME = "shard-000000"


def weights(count: int) -> Int64:
    """Return weights of datasets, from 1 to `SPREAD`, in turn.

    Examples:
        >>> weights(10).tolist()
        [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    """
    return np.arange(count, dtype=np.int64) % SPREAD + 1


def weighted(folders: Sequence[Path]) -> dict[str, int]:
    return dict(zip(map(str, folders), weights(len(folders)).tolist(), strict=True))


def text_spec() -> TextSpec:
    """Return tokenizer and template of all datasets; make the tokenizer if it is missing."""
    path = HOME / "tokenizer.json"
    if not path.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        byte_tokenizer().save(str(path))
    return TextSpec(tokenizer=path, template="chatml", image_tokens=IMAGE_TOKENS)


def synthetic(count: int, samples: int, *, kinds: int) -> list[Path]:
    """Return folders of datasets with index and token counts but no bytes; make missing ones.

    Of `count` datasets with so many `samples` each, `kinds` are distinct; the others link to them.
    """
    home = HOME / f"synthetic-{samples}"
    digest = TextEncoder(text_spec()).digest
    distinct = [home / f"kind-{kind}-of-{kinds}" for kind in range(kinds)]
    for kind, folder in enumerate(distinct):
        made_once(folder, partial(_write_synthetic, samples=samples, of=[kind], kinds=kinds))
    folders = [home / f"{kinds}-kinds" / f"dataset-{number:04d}" for number in range(count)]
    for number, folder in enumerate(folders):
        source = distinct[number % kinds]
        assert (source / f"tokens-{digest[:16]}").exists(), f"{home} is of another version"
        made_once(folder, partial(_link_as_another, source, number=number))
    return folders


def joined(samples: int, *, kinds: int) -> Path:
    """Return one dataset with as many samples of every kind, in turn; make it if it is missing."""
    write = partial(_write_synthetic, samples=samples, of=range(kinds), kinds=kinds)
    return made_once(HOME / f"synthetic-{samples}" / f"one-of-{kinds}-kinds", write)


def small(count: int, samples: int, *, links: int = 1) -> list[Path]:
    """Return folders of packed datasets of tiny photographs with captions; make missing ones.

    `count` distinct ones have `samples` together, in sizes as `weights`; each has `links` folders.
    Energon's index files are beside the shards.
    """
    home = HOME / f"small-{count}-{samples}"
    sizes = np.diff(np.round(np.cumsum([0, *weights(count)]) * samples / weights(count).sum()))
    folders = []
    for number, size in enumerate(sizes.astype(int).tolist()):
        write = partial(_write_small, size=size, number=number)
        folders.append(made_once(home / f"dataset-{number:03d}", write))
    for link in range(1, links):
        for source in folders[:count]:
            write = partial(_link_as_another, source, number=link)
            folders.append(made_once(home / f"link-{link}" / source.name, write))
    return folders


def parts(photos: Photos, count: int) -> list[Path]:
    """Return `count` packed datasets that have all photographs together; pack missing ones."""
    home = photos.raw.with_name(f"{photos.raw.name}-in-{count}")
    paths = photos.paths()
    folders = []
    for number in range(count):
        raw, out = home / "raw" / f"{number:03d}", home / "packed" / f"{number:03d}"
        made_once(raw, partial(_link_photographs, paths[number::count]))
        pack_dataset(raw, out, format="folder")
        folders.append(out)
    return folders


def _write_synthetic(folder: Path, *, samples: int, of: Sequence[int], kinds: int) -> None:
    """Write manifest, index and token counts. The shard is a file of the right size, all holes."""
    drawn = [lengths(samples // len(of), kind, kinds) for kind in of]
    text, images = (np.stack(each, 1).ravel() for each in zip(*drawn, strict=True))
    samples = len(text)
    size = _write_index(folder / f"{_NAME}.parquet", text, images)
    with (folder / f"{_NAME}.tar").open("wb") as file:
        file.truncate(size)
    shard = Shard(
        name=f"{_NAME}.tar",
        index=f"{_NAME}.parquet",
        samples=samples,
        images=int(images.sum()),
        bytes=size,
        index_sha256=file_sha256(folder / f"{_NAME}.parquet"),
    )
    part = Contribution(shards=1, inputs=samples, inputs_sha256="0" * 64, rejected=0)
    manifest = Manifest(shards=(shard,), parts=(part,))
    write_manifest(folder, manifest)
    open_columns(folder, manifest)
    encoder = TextEncoder(text_spec())
    # The images come first, then a question of five tokens, then what is learnt.
    tokens = TokenPart(
        text_tokens=text.astype(np.int32),
        label_tokens=(text - 5).astype(np.int32),
        places=images,
        image_at=np.zeros(int(images.sum()), np.int32),
        spans=np.ones(samples, np.int64),
        label_start=np.full(samples, 5, np.int32),
        label_stop=text.astype(np.int32),
        failures=(),
    )

    def count(files: PartFiles, missing: list[int]) -> None:
        files.write(shard, tokens)

    open_or_count(folder, manifest, encoder.digest, image_wrap=encoder.image_wrap, count=count)


def lengths(samples: int, kind: int, kinds: int) -> tuple[Int64, Int64]:
    """Draw text tokens and images of the samples of one kind: int64 [samples] each.

    Kinds go from captions of 40 tokens to documents of 1,500, with more images in the longer ones.
    """
    draw = np.random.default_rng(kind)
    share = kind / max(kinds - 1, 1)
    middle = 40 * (1500 / 40) ** share
    most = round(1 + 7 * share)
    images = draw.integers(0, most + 1, samples)
    text = np.exp(draw.normal(np.log(middle), 0.8, samples))
    limit = CAPACITY - most * IMAGE_TOKENS
    return np.clip(text, 10, limit).astype(np.int64), images.astype(np.int64)


def _write_index(path: Path, text: Int64, images: Int64) -> int:
    """Write the index of a shard; return the shard's size in bytes.

    A sample has a member for each image and one for its text.
    """
    numbers = pa.array(np.arange(len(text)))
    keys = pa.compute.utf8_lpad(numbers.cast(pa.string()), 9, "0")
    at_image = np.concatenate(([0], np.cumsum(images))).astype(np.int32)
    at_member = at_image + np.arange(len(text) + 1, dtype=np.int32)
    total = int(at_member[-1])
    last = np.zeros(total, bool)
    last[at_member[1:] - 1] = True
    sizes = np.where(last, np.repeat(4 * text, images + 1), 80_000)
    room = 512 + -(-sizes // 512) * 512
    offsets = np.cumsum(room) - room + 512
    slot = np.arange(total) - np.repeat(at_member[:-1].astype(np.int64), images + 1)
    names = pa.array(["txt", "jpg", *(f"{number}.jpg" for number in range(1, images.max() + 1))])
    ext = pa.DictionaryArray.from_arrays(pa.array(np.where(last, 0, slot + 1)), names)

    def rows(bounds: npt.NDArray[Any], values: Any) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(bounds), pa.array(values))

    sides = np.full(int(at_image[-1]), 480, np.int32)
    first = pa.array(np.full(len(text), 480, np.int32), mask=images == 0)
    columns = {
        "key": keys,
        "source": keys,
        "width": first,
        "height": first,
        "images": pa.array(images.astype(np.int32)),
        "text_bytes": pa.array(4 * text),
        "image_width": rows(at_image, sides),
        "image_height": rows(at_image, sides),
        "orientation": rows(at_image, np.ones(len(sides), np.int8)),
        "ext": rows(at_member, ext.cast(pa.string())),
        "offset": rows(at_member, offsets),
        "size": rows(at_member, sizes),
        "crc32": rows(at_member, np.zeros(total, np.uint32)),
    }
    table = pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    pq.write_table(table, path)
    return int(room.sum()) + 1024


def _link_as_another(source: Path, folder: Path, *, number: int) -> None:
    """Link all files of a dataset into a folder, as a dataset of another fingerprint."""
    manifest = read_manifest(source)
    inputs = f"{number:064x}"
    other = replace(manifest, parts=(replace(manifest.parts[0], inputs_sha256=inputs),))
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        elif path.name == MANIFEST:
            write_manifest(folder, other)
        elif path.suffix == ".json" and "fingerprint" in json.loads(path.read_bytes()):
            about = unseal(path.read_bytes())
            target.write_text(seal({**about, "fingerprint": other.fingerprint}))
        else:
            os.link(path, target)


def _write_small(folder: Path, *, size: int, number: int) -> None:
    """Pack photographs of `SIDE` pixels, in colours of their own, with a caption each."""
    draw = np.random.default_rng(number)
    raw = folder.with_name(f"{folder.name}.tar")
    with tarfile.open(raw, "w") as tar:
        for sample in range(size):
            key = f"{number:03d}{sample:07d}"
            corner = draw.integers(0, 256, (2, 2, 3), np.uint8)
            picture = Image.fromarray(corner).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            encoded = io.BytesIO()
            picture.save(encoded, "jpeg")
            words = " ".join(map(str, draw.integers(0, 1000, draw.integers(4, 40)).tolist()))
            for ext, data in (("jpg", encoded.getvalue()), ("txt", words.encode())):
                member = tarfile.TarInfo(f"{key}.{ext}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    pack_dataset(raw, folder, format="webdataset", check="header", sidecars=("energon",))
    raw.unlink()


def _link_photographs(paths: list[Path], folder: Path) -> None:
    for path in paths:
        for file in (path, path.with_suffix(".txt")):
            os.link(file, folder / file.name)
