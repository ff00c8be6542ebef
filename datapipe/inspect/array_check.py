"""Check of a dataset of arrays: sizes, checksums of blocks, each text and each image."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from datapipe.errors import IndexMismatch
from datapipe.index.columns import Columns
from datapipe.index.files.block_checksums import SUMS
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.npy import HEADER, map_npy
from datapipe.index.manifest import Arrays
from datapipe.inspect.block_check import check_blocks
from datapipe.inspect.findings import FileFindings, Finding
from datapipe.inspect.located import DatasetFiles
from datapipe.inspect.member_table import read_members
from datapipe.inspect.shard_check import OTHER_BYTES, MemberCheck, Tell
from datapipe.inspect.sources import FolderSource
from datapipe.store.arrays import CHECKED, IMAGE_CRC32, IMAGE_OFFSETS, IMAGES, TEXTS

STEP = 256 << 20
"""Bytes of images that are compared by one job."""

# Without these files, no image can be compared
_OF_IMAGES = {IMAGE_CRC32, IMAGE_OFFSETS, SUMS}


def check_array_files(folder: Path, arrays: Arrays) -> list[Finding]:
    """Return the damage that sizes and checksums of blocks show; texts and images are not read."""
    found = []
    for name, size in arrays.files.items():
        path = folder / name
        if not path.exists():
            found.append(Finding(file=name, problem="is missing"))
        elif (has := path.stat().st_size) != size:
            problem = f"has {has:,} bytes, the manifest says {size:,}"
            found.append(Finding(file=name, problem=problem))
    checked = [name for name in CHECKED if name in arrays.files]
    if not {finding.file for finding in found} & set(checked):
        found += check_blocks(folder, checked, arrays.checksums_crc32, "")
    if not found and TEXTS in arrays.files:
        try:
            map_npy(folder / TEXTS, "|u1")
            if arrays.image:
                map_npy(folder / IMAGES, "|u1", (*map(int, arrays.image["size"]), 3))
        except IndexMismatch as error:
            name = Path(str(error).partition(" is not")[0]).name
            found.append(Finding(file=name, problem="has a damaged header", start=0, stop=HEADER))
    return found


def array_jobs(located: DatasetFiles, arrays: Arrays, damage: list[Finding]) -> range:
    """Return the numbers of the jobs of `check_items`; `damage` is that of the files."""
    parts = len(located.entries)
    if not arrays.image or {finding.file for finding in damage} & _OF_IMAGES:
        return range(parts)
    return range(parts + -(-_images_of(located) // _images_at_once(arrays)))


def check_items(
    located: DatasetFiles,
    columns: Columns | None,
    number: int,
    *,
    arrays: Arrays,
    deep: bool,
    tell: Tell,
) -> FileFindings:
    """Compare the texts of part `number`, or some of the images if it is none of a part."""
    images = number - len(located.entries)
    if images < 0:
        return _check_texts(located, columns, number, deep=deep, tell=tell)
    return _check_images(located, columns, images, arrays=arrays, tell=tell)


def _check_texts(
    located: DatasetFiles, columns: Columns | None, number: int, *, deep: bool, tell: Tell
) -> FileFindings:
    members, findings = read_members(located, columns, number)
    found = FileFindings(file=TEXTS, findings=findings)
    with located.shards.open(TEXTS) as file:
        if file is None:
            found.add("is missing")
        elif members is not None:
            MemberCheck(
                file=file, members=members, found=found, deep=deep, tell=tell, lead=0, origin=HEADER
            ).run()
    first = sum(entry.samples for entry in located.entries[:number])
    found.damaged = {first + sample for sample in found.damaged}
    return found


def _check_images(
    located: DatasetFiles, columns: Columns | None, number: int, *, arrays: Arrays, tell: Tell
) -> FileFindings:
    assert isinstance(located.shards, FolderSource)
    folder, step = located.shards.folder, _images_at_once(arrays)
    first, stop = number * step, min((number + 1) * step, _images_of(located))
    found = FileFindings(file=IMAGES)
    size = _image_bytes(arrays)
    sums = map_npy(folder / IMAGE_CRC32, "<u4")
    offsets = map_npy(folder / IMAGE_OFFSETS, "<i8")
    edges = np.cumsum([0, *(entry.samples for entry in located.entries)])

    @cache
    def keys(part: int) -> list[str]:
        members, _ = read_members(located, columns, part)
        return [""] * located.entries[part].samples if members is None else members.keys

    buffer = memoryview(bytearray(size))
    with located.shards.open(IMAGES) as file:
        if file is None:
            found.add("is missing")
            return found
        for image in range(first, stop):
            start = HEADER + image * size
            try:
                problem = "" if file.fill(buffer, start) == size else "the file ends before"
            except OSError as error:
                problem = f"cannot be read: {error.strerror}"
            if problem or crc32(buffer) != sums[image]:
                sample = int(np.searchsorted(offsets, image, side="right")) - 1
                part = int(np.searchsorted(edges, sample, side="right")) - 1
                found.damaged.add(sample)
                where = {"start": start, "stop": start + size}
                key = keys(part)[sample - int(edges[part])]
                found.add(problem or OTHER_BYTES, key=key, member=f"image {image}", **where)
            found.members += 1
            found.bytes += size
            tell(1, size)
    return found


def _images_of(located: DatasetFiles) -> int:
    return sum(entry.images for entry in located.entries)


def _images_at_once(arrays: Arrays) -> int:
    return max(1, STEP // _image_bytes(arrays))


def _image_bytes(arrays: Arrays) -> int:
    height, width = map(int, arrays.image["size"])
    return height * width * 3
