"""Check of a dataset of arrays: sizes, checksums of blocks, each text and each image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from datapipe.errors import IndexMismatch
from datapipe.index.files.block_checksums import SUMS
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.npy import HEADER, map_npy
from datapipe.index.manifest import Arrays
from datapipe.inspect.derived_check import check_blocks
from datapipe.inspect.findings import FileFindings, Finding
from datapipe.inspect.located import DatasetFiles
from datapipe.inspect.member_table import read_members
from datapipe.inspect.shard_check import OTHER_BYTES, MemberCheck, Tell
from datapipe.inspect.sources import FolderSource, read_failure
from datapipe.store.arrays import CHECKED, IMAGE_CRC32, IMAGE_OFFSETS, IMAGES, TEXTS

_STEP = 256 << 20  # bytes of images that are compared by one job
_OF_IMAGES = {IMAGE_CRC32, IMAGE_OFFSETS, SUMS}  # without these, no image can be compared


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
        name = TEXTS
        try:
            map_npy(folder / name, "|u1")
            if arrays.image:
                name = IMAGES
                map_npy(folder / name, "|u1", (*map(int, arrays.image["size"]), 3))
        except IndexMismatch:
            found.append(Finding(file=name, problem="has a damaged header", start=0, stop=HEADER))
    return found


def array_jobs(located: DatasetFiles, damage: list[Finding]) -> range:
    """Return the numbers of the jobs; `damage` is that of the files."""
    arrays, texts = located.arrays, len(located.entries)
    assert arrays is not None
    if not arrays.image or {finding.file for finding in damage} & _OF_IMAGES:
        return range(texts)
    return range(texts + -(-_images_of(located) // _images_at_once(arrays)))


@dataclass(frozen=True, kw_only=True)
class ArrayJob:
    """Comparison of the texts of a part; for numbers behind the last part, of some images."""

    located: DatasetFiles
    number: int
    deep: bool
    tell: Tell
    parts: int = 1  # a thread does all of it

    def run(self, part: int) -> FileFindings:
        images = self.number - len(self.located.entries)
        return self._check_texts() if images < 0 else self._check_images(images)

    def _check_texts(self) -> FileFindings:
        located = self.located
        members, findings = read_members(located, self.number)
        found = FileFindings(file=TEXTS, findings=findings)
        with located.shards.open(TEXTS) as file:
            if file is None:
                found.add("is missing")
            elif members is not None:
                check = MemberCheck(file, located, members, found, self.deep, self.tell)
                check.lead, check.origin = 0, HEADER
                check.run()
        first = sum(entry.samples for entry in located.entries[: self.number])
        found.damaged = {first + sample for sample in found.damaged}
        return found

    def _check_images(self, number: int) -> FileFindings:
        located, arrays = self.located, self.located.arrays
        assert arrays is not None
        assert isinstance(located.shards, FolderSource)
        folder, step, size = located.shards.folder, _images_at_once(arrays), _image_bytes(arrays)
        found = FileFindings(file=IMAGES)
        sums = map_npy(folder / IMAGE_CRC32, "<u4")
        offsets = map_npy(folder / IMAGE_OFFSETS, "<i8")
        edges = np.cumsum([0, *(entry.samples for entry in located.entries)])

        @cache
        def keys(part: int) -> list[str]:
            members, _ = read_members(located, part)
            return [""] * located.entries[part].samples if members is None else members.keys

        buffer = memoryview(bytearray(size))
        with located.shards.open(IMAGES) as file:
            if file is None:
                found.add("is missing")
                return found
            for image in range(number * step, min((number + 1) * step, _images_of(located))):
                start = HEADER + image * size
                try:
                    problem = "" if file.fill(buffer, start) == size else "the file ends before"
                except OSError as error:
                    problem = read_failure(error)
                if problem or crc32(buffer) != sums[image]:
                    sample = int(np.searchsorted(offsets, image, side="right")) - 1
                    part = int(np.searchsorted(edges, sample, side="right")) - 1
                    found.damaged.add(sample)
                    where = {"start": start, "stop": start + size}
                    key = keys(part)[sample - int(edges[part])]
                    found.add(problem or OTHER_BYTES, key=key, member=f"image {image}", **where)
                found.members += 1
                found.bytes += size
                self.tell(1, size)
        return found


def _images_of(located: DatasetFiles) -> int:
    return sum(entry.images for entry in located.entries)


def _images_at_once(arrays: Arrays) -> int:
    return max(1, _STEP // _image_bytes(arrays))


def _image_bytes(arrays: Arrays) -> int:
    height, width = map(int, arrays.image["size"])
    return height * width * 3
