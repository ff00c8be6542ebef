"""The photographs that benchmarks read: of ImageNet size, made and packed once."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from datapipe.pack.pack_dataset import pack_dataset
from tools.make_sample_data import make_sample_data

_HOME = Path("build/bench")
_DIFFERENT = 32_768
_SHARDS = 8  # so that peers which deal whole shards to workers deal them evenly


@dataclass(frozen=True, kw_only=True)
class Photos:
    """Photographs with a caption each, as loose files.

    Attributes:
        raw: folder with `images/NN/NNNNNN.jpg` and a `.txt` beside each.
        count: photographs.
        pixels, encoded: of all of them; `encoded` in bytes.
    """

    raw: Path
    count: int
    pixels: int
    encoded: int

    def __str__(self) -> str:
        mean = (
            f"mean {self.pixels / self.count / 1e6:.2f} MPix, {self.encoded / self.count / 1e3:.0f}"
        )
        return f"{self.count:,} photographs, {mean} KB"

    def paths(self) -> list[Path]:
        """Return the JPEG files, in order."""
        return sorted(
            Path(place) / name
            for place, _, names in os.walk(self.raw)
            for name in names
            if name.endswith(".jpg")
        )

    def read(self) -> list[bytes]:
        """Read the JPEG files."""
        return [path.read_bytes() for path in self.paths()]


def photographs(samples: int) -> Photos:
    """Real photographs of about 0.2 MPix and 80 KB, the mean of ImageNet's; made where missing.

    Of more than 32,768, the others are links to the first ones.
    """
    if samples > _DIFFERENT:
        return _linked(photographs(_DIFFERENT), samples)
    raw = _HOME / f"photos-{samples}"
    totals = make_sample_data(
        raw, samples=samples, min_side=330, max_side=600, format="folder", jpeg_only=True
    )
    return Photos(raw=raw, count=totals["images"], pixels=totals["pixels"], encoded=totals["bytes"])


def mixed_photographs(samples: int) -> Photos:
    """Real photographs with sides of 224 to 1344 pixels; made where missing."""
    raw = _HOME / f"mixed-{samples}"
    totals = make_sample_data(raw, samples=samples, format="folder", jpeg_only=True)
    return Photos(raw=raw, count=totals["images"], pixels=totals["pixels"], encoded=totals["bytes"])


def bitmaps(samples: int) -> Photos:
    """Photographs of 256x256 pixels as they are in memory, 197 KB each; made where missing.

    There is next to nothing to decode, so what brings their bytes is all that counts. Those after
    the first 1,024 are links to these.
    """
    raw = _HOME / f"bitmaps-{samples}"
    if not raw.exists():
        temporary = raw.with_name(f"{raw.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        made: list[Path] = []
        sources = photographs(1024).paths()
        for number in range(samples):
            path = temporary / f"images/{number // 1000:03d}/{number:06d}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            if number < len(sources):
                Image.open(sources[number]).convert("RGB").resize((256, 256)).save(path)
                made.append(path)
            else:
                os.link(made[number % len(made)], path)
            path.with_suffix(".txt").write_text(f"photograph {number}")
        temporary.rename(raw)
    size = next(raw.rglob("*.bmp")).stat().st_size
    return Photos(raw=raw, count=samples, pixels=samples * 256 * 256, encoded=samples * size)


def _linked(photos: Photos, samples: int) -> Photos:
    raw = _HOME / f"photos-{samples}"
    times, rest = divmod(samples, photos.count)
    if rest:
        raise SystemExit(f"--samples {samples}: above {photos.count} only its multiples are made")
    if not raw.exists():
        temporary = raw.with_name(f"{raw.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        for number in range(times):
            shutil.copytree(
                photos.raw / "images", temporary / f"images{number}", copy_function=os.link
            )
        temporary.rename(raw)
    return Photos(
        raw=raw, count=samples, pixels=photos.pixels * times, encoded=photos.encoded * times
    )


def packed(photos: Photos) -> Path:
    """Return a folder with the same photographs in WebDataset shards; pack it if missing."""
    out = photos.raw.with_name(photos.raw.name + "-packed")
    pack_dataset(photos.raw, out, format="folder", shard_size=-(-photos.count // _SHARDS))
    return out


def scratch() -> Path:
    """Return the folder for output, on the disk of the photographs."""
    return _HOME / "scratch"
