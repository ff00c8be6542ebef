"""Samples stored in arrays: texts, concatenated, and decoded images, `[N, H, W, 3]`.

All of it is mapped, so that processes share what the page cache has, and nothing is copied before
it goes to a batch.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from datapipe.array_types import Bools, Int32, Int64, UInt8
from datapipe.errors import IndexMismatch, StoreError
from datapipe.index.columns import Columns
from datapipe.index.dataset import Dataset
from datapipe.index.files.block_checksums import CheckedFiles
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.npy import HEADER, map_npy
from datapipe.index.manifest import Arrays
from datapipe.index.rows import Member
from datapipe.store.protocol import Fetch, Store

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

_REMEDY = "restore it, or convert the shards again into a new folder"


class ArrayStore(Store):
    """The texts of a dataset of arrays, as a `Store`; from any thread.

    Args:
        folder: where the arrays are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        _, self.texts = map_npy(folder / TEXTS, "|u1")
        self._checked = np.zeros(0, bool)

    def __reduce__(self) -> tuple[object, ...]:
        # Another process maps them itself, and may work in another folder.
        return ArrayStore, (self._folder.absolute(),)

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

    def flags(self, columns: Columns) -> Bools:
        """Return which texts were compared: bool, by their index in the columns of members."""
        if not len(self._checked):
            self._checked = np.zeros(len(columns.member_size), bool)
        return self._checked

    def damaged(self, columns: Columns, members: Int64) -> Int64:
        """Return the texts that are not what was written; each is compared once in a process.

        Args:
            columns: of the dataset.
            members: int64 [m], indices in its columns of members.
        """
        self.flags(columns)
        new = members[~self._checked[members]]
        if not len(new):
            return new
        starts = columns.member_offset[new]
        ends = starts + columns.member_size[new]
        found = zip(starts.tolist(), ends.tolist(), columns.member_crc32[new].tolist(), strict=True)
        good = np.array([crc32(self.texts[a:b].data) == expected for a, b, expected in found])
        self._checked[new[good]] = True
        bad: Int64 = new[~good]
        return bad


@dataclass(slots=True)
class Advised:
    """Images that the kernel was told to read; a `Fetch` without members of its own.

    Attributes:
        bytes: of these images, and of `rest`.
        rest: members of other samples.
    """

    bytes: int
    rest: Fetch | None = None

    def contents(self, number: int) -> list[memoryview]:
        # Images are taken from the map.
        return [] if self.rest is None else self.rest.contents(number)


class SideFiles:
    """The files of a dataset of arrays beside its images and texts, compared with checksums."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._folder, self._arrays = folder, arrays
        self._checked = None
        if arrays.checksums_crc32 is not None:
            kinds = {name: kind for name, kind in CHECKED.items() if name in arrays.files}
            self._checked = CheckedFiles(folder, kinds, arrays.checksums_crc32, remedy=_REMEDY)

    def __reduce__(self) -> tuple[object, ...]:
        return SideFiles, (self._folder.absolute(), self._arrays)

    def array(self, name: str) -> Any:
        """Return the values of a file.

        Raises:
            IndexMismatch: it is not the one that was written.
        """
        if self._checked is None:
            return map_npy(self._folder / name, *CHECKED[name])[1]
        return self._checked.array(name)


class ImageArray:
    """The images of a dataset of arrays.

    Args:
        folder: where the arrays are.
        height, width: of each image, in pixels.
        files: those that are compared with checksums.

    Attributes:
        data: uint8 [I * height * width * 3], all values concatenated.
        placements: float64 [I, 4], scale_x, scale_y, left and top of each: pixel (x, y) of the
            original is at (x * scale_x + left, y * scale_y + top).
        size: values of an image.
        flags: bool [I], images that were compared.
    """

    def __init__(self, folder: Path, height: int, width: int, files: SideFiles) -> None:
        self._files = files
        self._folder, self.height, self.width = folder, height, width
        self.size = height * width * 3
        self._file, images = map_npy(folder / IMAGES, "|u1", (height, width, 3))
        self.data: UInt8 = images.reshape(-1)
        self._address: int = self.data.ctypes.data
        # Batches take images here and there: they need nothing of what follows one.
        self._advise(mmap.MADV_RANDOM, 0, len(self._file))
        self._sums = files.array(IMAGE_CRC32)
        self.placements = files.array(IMAGE_PLACEMENT)
        if not len(self._sums) == len(self.placements) == len(images):
            raise IndexMismatch(
                f"{folder}: {IMAGES} holds {len(images):,} images, {IMAGE_CRC32} "
                f"{len(self._sums):,} checksums and {IMAGE_PLACEMENT} {len(self.placements):,} "
                "placements; restore all from one copy of the dataset"
            )
        self.flags = np.zeros(len(images), bool)

    def __reduce__(self) -> tuple[object, ...]:
        return ImageArray, (self._folder.absolute(), self.height, self.width, self._files)

    def damaged(self, images: Int64) -> list[int]:
        """Return the images that are not what was written; each is compared once in a process."""
        new = images[~self.flags[images]]
        bad = []
        for image in new.tolist():
            values = self.data[image * self.size : (image + 1) * self.size]
            if crc32(values.data) == self._sums[image]:
                self.flags[image] = True
            else:
                bad.append(image)
        return bad

    def begin(self, images: Int64) -> Fetch:
        """Have the kernel read images, by their numbers int64 [n], before they are needed."""
        page = mmap.PAGESIZE
        for image in np.unique(images).tolist():
            start = (HEADER + image * self.size) // page * page
            stop = HEADER + (image + 1) * self.size
            self._advise(mmap.MADV_WILLNEED, start, stop - start)
        return Advised(len(images) * self.size)

    def middle(self, image: int) -> int:
        """Return the address of the middle of an image."""
        return self._address + image * self.size + self.size // 2

    def _advise(self, advice: int, start: int, size: int) -> None:
        if _madvise is not None:
            _madvise(self._file.ctypes.data + start, size, advice)


@dataclass(frozen=True, kw_only=True)
class ArrayDataset:
    """An opened dataset of arrays.

    Attributes:
        columns: of its samples.
        texts: its texts.
        images: its images; None if it has none, or they are left out.
        first: number in batches of its first sample.
    """

    columns: Columns
    texts: ArrayStore
    images: ImageArray | None
    first: int = 0

    def hold(self, samples: Int64) -> Bools:
        """Do `ArrayDatasets.hold`."""
        return np.ones(len(samples), bool)

    def split(self, samples: Int64, chosen: Bools) -> list[tuple[ArrayDataset, Bools]]:
        """Do `ArrayDatasets.split`: all samples are of this dataset."""
        return [(self, chosen)] if chosen.any() else []

    def middle(self, sample: int) -> int | None:
        """Do `ArrayDatasets.middle`."""
        if self.images is None:
            return None
        first, last = self.columns.sample_image[sample - self.first : sample - self.first + 2]
        return self.images.middle(int(first)) if last > first else None


class ArrayDatasets(Protocol):
    """The datasets of arrays among those of a loader: an `ArrayDataset`, or some of a mixture."""

    def hold(self, samples: Int64) -> Bools:
        """Return which samples are in arrays: bool [n], of their numbers int64 [n]."""
        ...

    def split(self, samples: Int64, chosen: Bools) -> list[tuple[ArrayDataset, Bools]]:
        """Return the datasets of arrays that hold some samples, and the samples that each holds.

        Args:
            samples: int64 [n], numbers of samples.
            chosen: bool [n], those that are looked for.

        Returns:
            Datasets, each with bool [n]; none if no chosen sample is in arrays.
        """
        ...

    def middle(self, sample: int) -> int | None:
        """Return the address of the middle of a sample's first image.

        None if the sample is not in arrays, or has no image.
        """
        ...


class TokenArrays:
    """The tokens of a dataset of arrays, those of its texts alone."""

    def __init__(self, files: SideFiles) -> None:
        self._files = files
        self._tokens: Int32 = files.array(TOKENS)
        self._labels: Int32 = files.array(LABELS)
        self._offsets: Int64 = files.array(TOKEN_OFFSETS)

    def __reduce__(self) -> tuple[object, ...]:
        return TokenArrays, (self._files,)

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
    return ImageArray(dataset.folder, int(height), int(width), SideFiles(dataset.folder, arrays))


def open_token_arrays(dataset: Dataset, digest: str) -> TokenArrays | None:
    """Return the tokens in a dataset of arrays that a tokenizer and template made, or None."""
    arrays = dataset.manifest.arrays
    if arrays is None or arrays.encoder != digest:
        return None
    assert isinstance(dataset.folder, Path)
    return TokenArrays(SideFiles(dataset.folder, arrays))


def are_resident(addresses: Sequence[int]) -> bool:
    """Return whether the pages at some addresses are in memory."""
    if _mincore is None:
        return False
    vector = (ctypes.c_ubyte * 1)()
    for address in addresses:
        if _mincore(address // mmap.PAGESIZE * mmap.PAGESIZE, 1, vector) or not vector[0] & 1:
            return False
    return True


def _find(name: str, last: Any) -> Any:
    """Return a function of the C library about a range of memory; None if there is none."""
    try:
        # It takes a microsecond, and to get the interpreter's lock back would take many.
        function = getattr(ctypes.PyDLL(None), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, last]
    return function


_mincore = _find("mincore", ctypes.c_void_p)
_madvise = _find("madvise", ctypes.c_int)
