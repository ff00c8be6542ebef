"""Check of a dataset of arrays: sizes, checksums of blocks, each text and each image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datapipe.errors import IndexMismatch
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.npy import HEADER, map_npy
from datapipe.index.manifest import Arrays
from datapipe.inspect.block_check import check_blocks
from datapipe.inspect.findings import FileFindings, Finding
from datapipe.inspect.member_table import MemberTable
from datapipe.inspect.shard_check import OTHER_BYTES, MemberCheck, Tell
from datapipe.inspect.sources import FolderSource
from datapipe.store.arrays import CHECKED, IMAGE_CRC32, IMAGE_OFFSETS, IMAGES, TEXTS

STEP = 256 << 20
"""Bytes of images that are compared by one job."""


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


def check_texts(
    folder: Path, members: MemberTable, first: int, *, deep: bool, tell: Tell
) -> FileFindings:
    """Compare the texts of the members of one part, which begins with the sample `first`."""
    found = FileFindings(file=TEXTS)
    with FolderSource(folder).open(TEXTS) as file:
        if file is not None:
            MemberCheck(
                file=file, members=members, found=found, deep=deep, tell=tell, lead=0, origin=HEADER
            ).run()
    found.damaged = {first + sample for sample in found.damaged}
    return found


def image_jobs(arrays: Arrays, images: int) -> Iterator[range]:
    """Yield images that are compared by one job each."""
    step = max(1, STEP // _image_bytes(arrays))
    for start in range(0, images, step):
        yield range(start, min(start + step, images))


def check_images(
    folder: Path, arrays: Arrays, images: range, keys: list[str], tell: Tell
) -> FileFindings:
    """Compare some images; `keys` are those of all samples of the dataset."""
    found = FileFindings(file=IMAGES)
    size = _image_bytes(arrays)
    sums = map_npy(folder / IMAGE_CRC32, "<u4")
    offsets = map_npy(folder / IMAGE_OFFSETS, "<i8")
    buffer = memoryview(bytearray(size))
    with FolderSource(folder).open(IMAGES) as file:
        for image in images if file is not None else ():
            assert file is not None
            start = HEADER + image * size
            try:
                problem = "" if file.fill(buffer, start) == size else "the file ends before"
            except OSError as error:
                problem = f"cannot be read: {error.strerror}"
            if problem or crc32(buffer) != sums[image]:
                sample = int(np.searchsorted(offsets, image, side="right")) - 1
                found.damaged.add(sample)
                key = keys[sample] if sample < len(keys) else ""
                where = {"start": start, "stop": start + size}
                found.add(problem or OTHER_BYTES, key=key, member=f"image {image}", **where)
            found.members += 1
            found.bytes += size
            tell(1, size)
    return found


def _image_bytes(arrays: Arrays) -> int:
    height, width = map(int, arrays.image["size"])
    return height * width * 3
