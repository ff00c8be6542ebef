"""Seconds in which `datapipe preview` writes the page of a dataset, and the size of the page.

The dataset has conversations with photographs of 96 to 256 pixels a side, 1,024 different ones.
Each run is a process of its own, with the columns in the page cache; the first one counts tokens.
With `--chromium PATH` a browser takes a screenshot of the first screen of the page, of 1280x900,
and one of an empty page in turn; the difference is what the page takes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import datapipe
from benchmarks.chats import chats
from benchmarks.common import Spread, command, machine
from benchmarks.data import HOME
from datapipe.index.manifest import MANIFEST
from tools.make_sample_data import make_sample_data

_PHOTOS = 1024
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1280,900"),
)


def shards(samples: int) -> Path:
    out = HOME / f"preview-{samples}"
    if (out / MANIFEST).exists():
        return out
    raw = HOME / "preview-raw"
    make_sample_data(raw, samples=_PHOTOS, min_side=96, max_side=256, jpeg_only=True)
    records = json.loads((raw / "data.json").read_text())
    many = HOME / f"preview-{samples}.json"
    many.write_text(json.dumps([records[number % len(records)] for number in range(samples)]))
    datapipe.pack_dataset(many, out, image_root=raw)
    return out


def write(folder: Path, tokenizer: Path, page: Path) -> float:
    command = [sys.executable, "-c", "from datapipe.cli.command import run; run()", "preview"]
    options = ["--tokenizer", tokenizer, "--template", "chatml", "--image-tokens", 144]
    words = [*command, folder, *options, "--image", "size=336", "--pack", 4096, "--output", page]
    return seconds_of(words)


def seconds_of(words: list[object]) -> float:
    started = time.monotonic()
    subprocess.run(list(map(str, words)), check=True, capture_output=True)
    return time.monotonic() - started


def screenshot(chromium: str, page: Path | None) -> float:
    """Return the seconds in which a browser starts, draws a page's first screen, and ends."""
    with tempfile.TemporaryDirectory() as folder:
        place = "about:blank" if page is None else page.as_uri()
        picture = f"--screenshot={folder}/screen.png"
        return seconds_of([chromium, *_FLAGS, picture, f"--user-data-dir={folder}/profile", place])


def main() -> None:
    parser = command("preview", __doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chromium", help="path of a Chromium, to time the first screen")
    given = parser.parse_args()
    folder, (_, tokenizer) = shards(given.samples), chats(256)
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "preview.html"
        first = write(folder, tokenizer, page)
        times = [write(folder, tokenizer, page) for _ in range(given.rounds)]
        size = page.stat().st_size
        drawn = []
        for _ in range(given.rounds if given.chromium else 0):
            empty = screenshot(given.chromium, None)
            drawn.append(screenshot(given.chromium, page) - empty)
    print(f"{machine(cache='warm')}: {given.samples:,} samples")
    print(f"  page written   {Spread.of(times)} s; at first, with tokens counted, {first:.1f} s")
    print(f"  size           {size / 1e6:.1f} MB")
    if drawn:
        print(f"  first screen   {Spread.of(drawn)} s")


if __name__ == "__main__":
    main()
