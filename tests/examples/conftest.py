"""A small packed dataset: short and long texts, with no image, one or two."""

import json
import runpy
import sys

import pytest
import torch
from torch._dynamo.utils import counters

import datapipe
from examples.vlm import train as program
from examples.vlm.model.config import MODELS

from .vlm_runs import SMALL


@pytest.fixture(scope="session")
def shards(tmp_path_factory, crop):
    """25 samples in three shards: every 5th has two images, every 4th none."""
    raw = tmp_path_factory.mktemp("raw")
    records = []
    for number in range(25):
        count = 0 if number % 4 == 3 else 2 if number % 5 == 2 else 1
        names = [f"{number}-{image}.jpg" for image in range(count)]
        for image, name in enumerate(names):
            photo = ("chelsea.png", "coffee.png", "rocket.jpg")[(number + image) % 3]
            crop(photo, (40 + number % 7, 30 + number % 5), 50 + 9 * image + number).save(
                raw / name
            )
        turns = [
            {"from": "human", "value": "<image>" * count + "What is it?"},
            {"from": "gpt", "value": f"It is {number}." + " Indeed." * (number * 7 % 13)},
        ]
        record = {"id": str(number), "conversations": turns}
        if names:
            record["image"] = names[0] if count == 1 else names
        records.append(record)
    (raw / "data.json").write_text(json.dumps(records))
    out = tmp_path_factory.mktemp("packed") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=10)
    return out


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder as a download of Qwen2.5-VL leaves it, of a tiny model."""
    from ..models.tiny import TINY  # needs transformers

    folder, tiny = tmp_path_factory.mktemp("Qwen2.5-VL-tiny"), TINY["qwen2_5_vl"]
    tiny.case.save(folder)
    with torch.random.fork_rng():
        tiny.build("sdpa").float().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Products as small as these take longer where threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_model(monkeypatch):
    """The model called tiny is smaller still."""
    monkeypatch.setitem(MODELS, "tiny", SMALL)


@pytest.fixture
def runs(monkeypatch):
    """Every run that is begun in a test."""
    seen = []
    build = program.build

    def remember(*arguments):
        seen.append(build(*arguments))
        return seen[-1]

    monkeypatch.setattr(program, "build", remember)
    return seen


@pytest.fixture
def run_program(monkeypatch):
    """Runs a program by its command line, in this process."""

    def run(line):
        monkeypatch.setattr(sys, "argv", line)
        runpy.run_path(line[0], run_name="__main__")

    return run


@pytest.fixture
def fresh_compiler():
    """Nothing was compiled before, and nothing stays compiled."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()
