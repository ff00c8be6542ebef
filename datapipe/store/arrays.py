"""Samples stored in arrays: texts, concatenated, and decoded images, `[N, H, W, 3]`.

All of it is mapped, so that processes share what the page cache has, and nothing is copied before
it goes to a batch.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.array_types import Int32, Int64, UInt8
from datapipe.errors import IndexMismatch, StoreError
from datapipe.index.dataset import Dataset
from datapipe.index.files.block_checksums import checked_files
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.npy import HEADER, map_npy
from datapipe.index.manifest import Arrays
from datapipe.index.rows import Member
from datapipe.store.protocol import Store

IMAGES, TEXTS = "images.npy", "texts.npy"
TOKENS, LABELS, TOKEN_OFFSETS = "tokens.npy", "labels.npy", "token_offsets.npy"
IMAGE_OFFSETS, IMAGE_CRC32 = "image_offsets.npy", "image_crc32.npy"
IMAGE_PLACEMENT = "image_placement.npy"

CHECKED: dict[str, tuple[str, tuple[int, ...]]] = {
    IMAGE_CRC32: ("<u4", ()),
    IMAGE_OFFSETS: ("<i8", ()),
    IMAGE_PLACEMENT: ("<f8", (4,)),
    LABELS: ("<i4", ()),
    TOKEN_OFFSETS: ("<i8", ()),
    TOKENS: ("<i4", ()),
}
"""Files whose bytes have no checksums elsewhere: dtype and row, in the order of `SUMS`."""

_WILL_NEED = os.POSIX_FADV_WILLNEED
_REMEDY = "restore it, or convert the shards again into a new folder"


class ArrayStore(Store):
    """Texts of a dataset of arrays in a folder, as a `Store`; from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.texts: UInt8 = map_npy(folder / TEXTS, "|u1")

    def name(self, shard: int) -> str:
        return TEXTS

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        texts = self.texts
        for member in members:
            if member.offset + member.size > len(texts):
                raise StoreError(
                    f"{self._folder / TEXTS} ends before byte {member.offset + member.size:,}; it "
                    "is not the one that was indexed: restore it, or convert the shards again"
                )
        return [texts[member.offset : member.offset + member.size].data for member in members]


class ImageArray:
    """Images of a dataset of arrays.

    `data` are all values concatenated: uint8 [I * height * width * 3], `size` for each image.
    `placements` are scale_x, scale_y, left and top of each, float64 [I, 4]: pixel (x, y) of the
    original is at (x * scale_x + left, y * scale_y + top). `sums` are the checksums: uint32 [I].
    """

    def __init__(self, folder: Path, height: int, width: int, files: Mapping[str, Any]) -> None:
        self.height, self.width = height, width
        self.size = height * width * 3
        self._path = str(folder / IMAGES)
        images = map_npy(folder / IMAGES, "|u1", (height, width, 3))
        self.data: UInt8 = images.reshape(-1)
        self.sums = files[IMAGE_CRC32]
        self.placements = files[IMAGE_PLACEMENT]
        if not len(self.sums) == len(self.placements) == len(images):
            raise IndexMismatch(
                f"{folder}: {IMAGES} holds {len(images):,} images, {IMAGE_CRC32} "
                f"{len(self.sums):,} checksums and {IMAGE_PLACEMENT} {len(self.placements):,} "
                "placements; restore all from one copy of the dataset"
            )

    def is_whole(self, image: int) -> bool:
        """Return whether an image is unchanged since it was written."""
        values = self.data[image * self.size : (image + 1) * self.size]
        return bool(crc32(values.data) == self.sums[image])

    def begin(self, images: Int64) -> int:
        """Have the kernel read images, int64 [n], before they are needed; return their bytes."""
        with suppress(OSError), io.FileIO(self._path) as file:  # it may be removed, the map stays
            for image in np.unique(images).tolist():
                os.posix_fadvise(file.fileno(), self._start(image), self.size, _WILL_NEED)
        return len(images) * self.size

    def is_cached(self, image: int) -> bool:
        """Return whether the middle of an image is in the page cache, if the system tells."""
        middle = self._start(image) + self.size // 2
        with suppress(OSError), io.FileIO(self._path) as file:  # it would wait for the disk
            return os.preadv(file.fileno(), [bytearray(1)], middle, os.RWF_NOWAIT) == 1
        return False

    def _start(self, image: int) -> int:
        return HEADER + image * self.size


@dataclass(frozen=True, kw_only=True)
class ArrayDataset:
    """An opened dataset of arrays."""

    texts: ArrayStore
    images: ImageArray | None  # None if it has none, or they are left out


class TokenArrays:
    """The tokens of a dataset of arrays, those of its texts alone."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._tokens: Int32 = files[TOKENS]
        self._labels: Int32 = files[LABELS]
        self._offsets: Int64 = files[TOKEN_OFFSETS]

    def of(self, sample: int) -> tuple[Int32, Int32]:
        """Return tokens and labels of a sample: int32 [T] each; a label is a token, or -100."""
        start, stop = self._offsets[sample : sample + 2].tolist()
        return self._tokens[start:stop], self._labels[start:stop]


def open_images(dataset: Dataset) -> ImageArray | None:
    """Return the images of a dataset of arrays; None where it has none, or has shards."""
    arrays = dataset.manifest.arrays
    if arrays is None or not arrays.image:
        return None
    assert isinstance(dataset.folder, Path)
    height, width = arrays.image["size"]
    files = _checked_files(dataset.folder, arrays)
    return ImageArray(dataset.folder, int(height), int(width), files)


def open_token_arrays(dataset: Dataset, digest: str) -> TokenArrays | None:
    """Return the tokens in a dataset of arrays that a tokenizer and template made, or None."""
    arrays = dataset.manifest.arrays
    if arrays is None or arrays.encoder != digest:
        return None
    assert isinstance(dataset.folder, Path)
    return TokenArrays(_checked_files(dataset.folder, arrays))


def _checked_files(folder: Path, arrays: Arrays) -> dict[str, Any]:
    kinds = {name: kind for name, kind in CHECKED.items() if name in arrays.files}
    return checked_files(folder, kinds, arrays.checksums_crc32, remedy=_REMEDY)
