"""Datasets of conversations about images of odd sizes."""

import json
import random
from dataclasses import dataclass

import pytest
from PIL import Image

import datapipe

from ..decode.fitted import photo
from ..decode.fitted import rows_first as rows_first
from .tiny import TINY
from .videos import VIDEO_CASES, write_shards
from .videos import samples as video_samples

FORMS = (
    *("pixtral", "idefics3", "gemma4", "glm4v", "llava_onevision", "llama4"),
    *("lfm2_vl", "paddleocr_vl"),
)
PHOTOS = ("coffee.png", "astronaut.png", "rocket.jpg", "chelsea.png")
WORDS = ("What", "which module", "option", "a", "test of", "the subprocess", "é", "漢字", "🙂", "x")


@dataclass(frozen=True)
class Sample:
    """A conversation and its images."""

    turns: list[tuple[str, str]]
    images: list[Image.Image]


def loader_of(shards, model, **options):
    """A loader in this process, of samples in their order if not asked for otherwise."""
    given = {"shuffle": False, "num_workers": 0} | options
    return datapipe.make_loader(shards, model=model, **given)


@pytest.fixture(scope="session")
def samples_of():
    """Makes so many samples: of one image, several or none; sizes and texts of every kind."""

    def make(count):
        draw = random.Random(7)
        return [_sample(draw, number) for number in range(count)]

    return make


@pytest.fixture(scope="session")
def films(tmp_path_factory):
    """Shards of samples with videos."""
    return write_shards(tmp_path_factory.mktemp("videos") / "shards", video_samples())


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Checkpoints of models with videos, with images of new forms, or without packs."""
    cases = VIDEO_CASES | {name: TINY[name].case for name in (*FORMS, "gemma3")}
    return {name: case.save(tmp_path_factory.mktemp(name)) for name, case in cases.items()}


def _sample(draw, number):
    def words():
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))

    images = [_image(draw) for _ in range((1, 0, 1, 2, 1, 3)[number % 6])]
    turns = [("user", "<image>" * len(images) + words()), ("assistant", words())]
    if number % 4 == 3:
        turns += [("user", words()), ("assistant", words())]
    return Sample(turns, images)


def _image(draw):
    source = photo(draw.choice(PHOTOS))
    long = draw.choice((28, 60, 150, 300, 420, 640))
    width = max(9, round(long * draw.uniform(0.3, 1)))
    height = max(9, round(long * draw.uniform(0.3, 1)))
    left = draw.randint(0, max(0, source.width - width))
    top = draw.randint(0, max(0, source.height - height))
    cut = source.crop(
        (left, top, min(left + width, source.width), min(top + height, source.height))
    )
    return cut.resize((width, height))


@pytest.fixture(scope="session")
def packed_samples(tmp_path_factory):
    """Packs samples as PNG files with a table of conversations."""

    def pack(samples):
        root = tmp_path_factory.mktemp("conversations")
        raw = root / "raw"
        raw.mkdir()
        records = []
        for number, sample in enumerate(samples):
            names = [f"{number}-{image}.png" for image in range(len(sample.images))]
            for name, image in zip(names, sample.images, strict=True):
                image.save(raw / name)
            turns = [
                {"from": {"user": "human", "assistant": "gpt"}[role], "value": text}
                for role, text in sample.turns
            ]
            record = {"id": f"{number:06d}", "conversations": turns}
            records.append(record | ({"image": names} if names else {}))
        (raw / "data.json").write_text(json.dumps(records))
        report = datapipe.pack_dataset(raw, root / "shards")
        assert report.samples == len(samples)
        return root / "shards"

    return pack


@pytest.fixture(scope="session")
def shards(samples_of, packed_samples):
    """Twelve samples, packed."""
    return packed_samples(samples_of(12))
