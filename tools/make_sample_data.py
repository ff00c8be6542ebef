"""Make a raw image-text dataset out of the photographs that scikit-image bundles.

    python tools/make_sample_data.py OUT --samples 2000 --seed 0

Every sample is a random crop of a real photograph with a text that is true of it, so a model can
learn it. Samples depend on the options alone, not on `--workers`; nothing is downloaded.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib.resources import files
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from datapipe.cpus import available_cpus
from datapipe.progress import Progress

Record = dict[str, Any]
MARKER = ".sample-data.json"  # the options, then the totals; hidden, so that readers pass over it

# Files in skimage/data: relative frequency, then two ways to name the subject.
PHOTOS = {
    "astronaut.png": (3, "an astronaut in a space suit", "an astronaut"),
    "camera.png": (2, "a cameraman and his tripod", "a man behind a camera"),
    "chelsea.png": (3, "a tabby cat", "the face of a tabby cat"),
    "coffee.png": (3, "a cup of coffee", "a cup of coffee on a wooden table"),
    "coins.png": (1, "old coins", "rows of ancient coins"),
    "grass.png": (1, "grass", "a patch of grass"),
    "gravel.png": (1, "gravel", "small stones"),
    "hubble_deep_field.jpg": (3, "distant galaxies", "the Hubble deep field"),
    "ihc.png": (2, "stained tissue", "tissue under a microscope"),
    "moon.png": (1, "the surface of the moon", "craters on the moon"),
    "motorcycle_left.png": (3, "a motorcycle", "a motorcycle in a garage"),
    "retina.jpg": (2, "the retina of an eye", "a human retina"),
    "rocket.jpg": (3, "a rocket", "a rocket on its launch pad"),
}
BRIGHTNESS = ((50, "very dark"), (90, "dark"), (120, "neither dark nor bright"), (150, "bright"))
COLOUR = ((1, "black and white"), (20, "almost colourless"), (50, "softly coloured"))
REQUESTS = ("Describe this picture.", "Write a caption.", "What can be said about this image?")
CAPTIONS = (
    "{extent} photograph of {subject}, {where}; it is {brightness} and {colour}.",
    "{subject}: {extent} photograph, {where}. The picture is {colour} and {brightness}.",
    "a {shape} picture, {extent} photograph of {subject}. It looks {brightness} and {colour}.",
    "{extent} photograph that shows {subject}, {where}. It is {brightness} and {colour}.",
)
QUESTIONS = (
    ("What was photographed?", "It is {extent} photograph of {subject}."),
    ("Which part of the photograph is this?", "It was {where}."),
    ("How bright is the picture?", "It is {brightness}."),
    ("How colourful is it?", "It is {colour}."),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """All that the dataset depends on. Sides are in pixels; `format` is "llava" or "folder"."""

    samples: int = 2000
    seed: int = 0
    min_side: int = 224
    max_side: int = 1344
    format: str = "llava"
    broken: int = 0
    jpeg_only: bool = False

    def __post_init__(self) -> None:
        if self.format not in ("llava", "folder") or not 16 <= self.min_side <= self.max_side:
            raise ValueError(f"need format llava or folder, 16 <= min_side <= max_side; got {self}")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An encoded image and words that are true of it."""

    data: bytes
    suffix: str
    pixels: int
    facts: dict[str, str]


@cache
def load_photo(name: str) -> Image.Image:
    with (files("skimage") / "data" / name).open("rb") as file:
        return Image.open(file).convert("RGB")


def word_for(value: float, levels: tuple[tuple[float, str], ...], otherwise: str) -> str:
    return next((word for limit, word in levels if value < limit), otherwise)


def measure(image: Image.Image) -> dict[str, str]:
    """Words for brightness (mean grey level), colour (mean chroma) and shape."""
    rgb = np.asarray(image.convert("RGB").resize((48, 48), Image.Resampling.BOX), np.float64)
    return {
        "brightness": word_for(rgb.mean(), BRIGHTNESS, "very bright"),
        "colour": word_for(np.ptp(rgb, axis=2).mean(), COLOUR, "vividly coloured"),
        "shape": word_for(image.width / image.height, ((0.87, "tall"), (1.15, "square")), "wide"),
    }


def make_picture(options: Options, name: str) -> Picture:
    """Make a random crop of a photograph; the seed and `name` decide everything that is drawn."""
    rng = Random(f"{options.seed}/{name}")
    photo = rng.choices(list(PHOTOS), [weight for weight, *_ in PHOTOS.values()])[0]
    source, low, high = load_photo(photo), options.min_side, options.max_side
    # Area is log-uniform, as is the aspect ratio between 1/2 and 2; then both sides are clamped.
    side, stretch = low * (high / low) ** rng.random(), 2 ** rng.uniform(-0.5, 0.5)
    columns, rows = (min(max(round(s), low), high) for s in (side * stretch, side / stretch))
    # The crop has the aspect ratio of the result and at least half the length that fits.
    scale = rng.uniform(0.5, 1) * min(source.width / columns, source.height / rows)
    width, height = columns * scale, rows * scale
    left, top = rng.uniform(0, source.width - width), rng.uniform(0, source.height - height)
    box = (left, top, left + width, top + height)
    image = source.resize((columns, rows), Image.Resampling.BICUBIC, box=box)
    # Sensor grain: without it enlarged crops are smoother than photographs, and decode faster.
    generator, sigma = np.random.default_rng(rng.getrandbits(64)), rng.uniform(5, 16)
    grain = generator.standard_normal((rows, columns, 1), np.float32) * np.float32(sigma)
    image = Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))
    if mirrored := rng.random() < 0.3:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if rng.random() < 0.3:
        factor = rng.uniform(0.5, 1.5)
        image = image.point([min(round(value * factor), 255) for value in range(256)] * 3)
    if rng.random() < 0.04:
        image = image.convert("L")
    facts = measure(image)
    x, y = (left + width / 2) / source.width, (top + height / 2) / source.height
    where = word_for(y, ((0.44, "upper "), (0.56, "middle ")), "lower ")
    where += word_for(x, ((0.44, "left"), (0.56, "centre")), "right")
    share = width * height / (source.width * source.height)
    facts["photo"] = photo.split(".")[0]
    facts["subject"] = str(rng.choice(PHOTOS[photo][1:]))
    facts["extent"] = word_for(share, ((0.25, "detail of a"), (0.6, "part of a")), "most of a")
    facts["where"] = f"cropped at the {where}" + " and mirrored" * mirrored
    suffix = ".jpg" if options.jpeg_only else rng.choices((".jpg", ".png", ".webp"), (94, 3, 3))[0]
    kind, file = Image.registered_extensions()[suffix], BytesIO()
    image.save(file, kind, quality=rng.randint(80, 95), compress_level=3, method=2)
    return Picture(data=file.getvalue(), suffix=suffix, pixels=rows * columns, facts=facts)


def write_texts(rng: Random, pictures: list[Picture]) -> list[str]:
    """Questions and answers in turn: about the pictures, or a sum where there are none."""
    if not pictures:
        a, b = rng.randrange(100), rng.randrange(100)
        return [f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."]
    captions = [rng.choice(CAPTIONS).format(**picture.facts) for picture in pictures]
    if len(pictures) == 1:
        pairs = [(rng.choice(REQUESTS), captions[0]), *rng.sample(QUESTIONS, rng.randint(0, 3))]
        return [text.format(**pictures[0].facts) for pair in pairs for text in pair]
    return ["Describe each picture.", " ".join(f"{i + 1}: {c}" for i, c in enumerate(captions))]


def make_record(name: str, paths: list[str], texts: list[str]) -> Record:
    """Make a LLaVA record, with one placeholder per image in its first human turn."""
    texts = ["<image>\n" * len(paths) + texts[0], *texts[1:]]
    turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]
    image = {"image": paths[0] if len(paths) == 1 else list(paths)} if paths else {}
    return {"id": name, **image, "conversations": turns}


def write_sample(out: Path, options: Options, number: int) -> tuple[Record, list[list[int]]]:
    """Write the files of one sample; returns its record, and pixels and bytes of each image."""
    rng, name = Random(f"{options.seed}/{number}"), f"{number:06d}"
    stem = f"images/{number // 1000:02d}/{name}"
    count = 1 if options.format == "folder" else rng.choices(range(4), (4, 92, 3, 1))[0]
    pictures = [make_picture(options, f"{number}/{i}") for i in range(count)]
    texts = write_texts(rng, pictures)
    (out / stem).parent.mkdir(parents=True, exist_ok=True)
    paths = [stem + f"_{i}" * (i > 0) + picture.suffix for i, picture in enumerate(pictures)]
    for path, picture in zip(paths, pictures, strict=True):
        (out / path).write_bytes(picture.data)
    if options.format == "folder":
        (out / f"{stem}.txt").write_text(texts[1], encoding="utf-8")
    record = make_record(name, paths, texts) | {"photo": [p.facts["photo"] for p in pictures]}
    return record, [[picture.pixels, len(picture.data)] for picture in pictures]


def plant_broken(out: Path, options: Options, index: int) -> Record:
    """Plant an input in the middle of the order, cut short, empty, HTML or missing in turn."""
    name = f"{options.samples // 2:06d}-broken-{index}"
    stem = f"images/{options.samples // 2000:02d}/{name}"
    whole = (files("skimage") / "data" / "rocket.jpg").read_bytes()
    content = (whole[: len(whole) // 2], b"", b"<!DOCTYPE html>404 Not Found", None)[index % 4]
    if content is not None:
        (out / f"{stem}.jpg").write_bytes(content)
    if options.format == "folder":
        (out / f"{stem}.txt").write_text("a broken input", encoding="utf-8")
    return make_record(name, [f"{stem}.jpg"], [REQUESTS[0], "It is broken."])


def make_sample_data(out: str | Path, *, workers: int = 0, **options: Any) -> dict[str, int]:
    """Write the dataset; returns its numbers of readable images, their pixels and bytes.

    `options` are fields of `Options`; `workers` are processes (0: one per core). Does nothing where
    `out` already holds this dataset. ValueError where it holds another one, or other files.
    """
    out, chosen = Path(out), Options(**options)
    marker, asked = out / MARKER, asdict(chosen)
    if not marker.exists() and out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose a new folder")
    made = json.loads(marker.read_text()) if marker.exists() else {"options": asked}
    if made["options"] != asked:
        raise ValueError(f"{out} has {made['options']}, not {asked}: remove it or choose another")
    if "totals" in made:
        return dict(made["totals"])
    out.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps(made))
    records, sizes = [], []
    pool = ProcessPoolExecutor(workers or available_cpus(), get_context("spawn"))
    with pool, Progress("making", unit="sample", total=chosen.samples) as progress:
        for record, written in pool.map(partial(write_sample, out, chosen), range(chosen.samples)):
            records.append(record)
            sizes += written
            progress.advance()
    middle = chosen.samples // 2
    records[middle:middle] = [plant_broken(out, chosen, i) for i in range(chosen.broken)]
    if chosen.format == "llava":
        (out / "data.json").write_text(json.dumps(records, indent=1))
    pixels, encoded = (sum(size[i] for size in sizes) for i in range(2))
    totals = {"images": len(sizes), "pixels": pixels, "bytes": encoded}
    marker.write_text(json.dumps({"options": asked, "totals": totals}))
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one per core")
    for field in fields(Options):
        kind, flag = type(field.default), "--" + field.name.replace("_", "-")
        how = {"action": "store_true"} if kind is bool else {"type": kind, "default": field.default}
        parser.add_argument(flag, **how)
    try:
        totals = make_sample_data(**vars(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"make_sample_data: {error}")
    pixels, encoded = (totals[name] / max(totals["images"], 1) for name in ("pixels", "bytes"))
    print(f"{totals['images']} images, mean {pixels / 1e6:.3f} MPix and {encoded / 1e3:.1f} KB")


if __name__ == "__main__":
    main()
