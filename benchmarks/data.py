"""Data that benchmarks read, made once; fresh folders, and the page cache."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks.common import Run, made_once
from datapipe.index.files.crc32 import crc32
from datapipe.pack.pack_dataset import pack_dataset
from tools.make_sample_data import make_sample_data

HOME = Path("build/bench")
_DIFFERENT = 32_768
_SHARDS = 8  # so that peers which deal whole shards to workers deal them evenly
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Photos:
    """Photographs with a caption each: `images/NN/NNNNNN.jpg` in `raw`, and a `.txt` beside each.

    `pixels` and `encoded`, in bytes, are those of all of them.
    """

    raw: Path
    count: int
    pixels: int
    encoded: int

    def __str__(self) -> str:
        pixels, encoded = self.pixels / self.count / 1e6, self.encoded / self.count / 1e3
        return f"{self.count:,} photographs, mean {pixels:.2f} MPix, {encoded:.0f} KB"

    def paths(self) -> list[Path]:
        return sorted(self.raw.rglob("*.jpg"))

    def read(self) -> list[bytes]:
        return [path.read_bytes() for path in self.paths()]


def photographs(samples: int) -> Photos:
    """Real photographs of about 0.2 MPix and 80 KB, the mean of ImageNet's; made where missing.

    Of more than 32,768, the others are links to the first ones.
    """
    if samples <= _DIFFERENT:
        return _photos(HOME / f"photos-{samples}", samples, min_side=330, max_side=600)
    photos = photographs(_DIFFERENT)
    times, rest = divmod(samples, photos.count)
    if rest:
        raise SystemExit(f"--samples {samples}: above {photos.count} only its multiples are made")

    def write(folder: Path) -> None:
        for number in range(times):
            copy = folder / f"images{number}"
            shutil.copytree(photos.raw / "images", copy, copy_function=os.link)

    raw = made_once(HOME / f"photos-{samples}", write)
    return Photos(raw, samples, photos.pixels * times, photos.encoded * times)


def mixed_photographs(samples: int) -> Photos:
    """Real photographs with sides of 224 to 1344 pixels; made where missing."""
    return _photos(HOME / f"mixed-{samples}", samples)


def _photos(raw: Path, samples: int, **sides: int) -> Photos:
    totals = make_sample_data(raw, samples=samples, format="folder", jpeg_only=True, **sides)
    return Photos(raw, totals["images"], totals["pixels"], totals["bytes"])


def bitmaps(samples: int) -> Photos:
    """Photographs of 256x256 pixels as they are in memory, 197 KB each; made where missing.

    There is next to nothing to decode, so what brings their bytes is all that counts. Those after
    the first 1,024 are links to these.
    """

    def write(folder: Path) -> None:
        made: list[Path] = []
        sources = photographs(1024).paths()
        for number in range(samples):
            path = folder / f"images/{number // 1000:03d}/{number:06d}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            if number < len(sources):
                Image.open(sources[number]).convert("RGB").resize((256, 256)).save(path)
                made.append(path)
            else:
                os.link(made[number % len(made)], path)
            path.with_suffix(".txt").write_text(f"photograph {number}")

    raw = made_once(HOME / f"bitmaps-{samples}", write)
    size = next(raw.rglob("*.bmp")).stat().st_size
    return Photos(raw, samples, samples * 256 * 256, samples * size)


def packed(photos: Photos) -> Path:
    """Return a folder with the same photographs in WebDataset shards; pack it if missing."""
    out = photos.raw.with_name(photos.raw.name + "-packed")
    pack_dataset(photos.raw, out, format="folder", shard_size=-(-photos.count // _SHARDS))
    return out


@contextmanager
def fresh() -> Iterator[Path]:
    """Yield an empty folder for output, on the disk of the photographs; delete it afterwards."""
    folder = HOME / "scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()  # earlier writes must not be waited for
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def timed(samples: int, work: Callable[[], object]) -> Run:
    started = time.perf_counter()
    work()
    return Run(samples=samples, seconds=time.perf_counter() - started)


def drop_cache(paths: Iterable[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm_cache(paths: Iterable[Path]) -> None:
    for path in paths:
        checksum(path)


def checksum(path: Path) -> int:
    """Return the crc32 of a file, read from front to back."""
    buffer, total = memoryview(bytearray(_BLOCK)), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total = crc32(buffer[:count], total)
    return total
