"""A small packed dataset, and a tokenizer for it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
from datapipe.text.encode import SampleText, TextEncoder

SAMPLES = 40
LONG = {7: 20, 20: 42}  # turns of samples that are longer than the others


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch):
    """Output does not depend on how long a command takes on a busy machine."""
    monkeypatch.setattr("datapipe.progress.PLAIN_EVERY", math.inf)


@pytest.fixture(scope="session", autouse=True)
def _compiled_packer():
    """Commands in processes of their own find the packer in numba's cache."""
    datapipe.plan.pack_lengths([1], 1)


def records():
    made = []
    for number in range(SAMPLES):
        images = number % 3
        turns = LONG.get(number, 1 + number % 4)
        first = "<image>" * images + f"What is number {number}?"
        talk = [{"from": "human", "value": first}]
        talk += [{"from": "gpt", "value": f"It is {number}. " * turns}]
        record: dict[str, Any] = {"conversations": talk}
        if images:
            record["image"] = [f"{'a' * (image + 1)}.jpg" for image in range(images)]
        made.append(record)
    return made


@pytest.fixture(scope="session")
def raw(tmp_path_factory, make_llava):
    return Path(make_llava(tmp_path_factory.mktemp("raw"), records()))


@pytest.fixture
def shards(tmp_path, raw):
    datapipe.pack_dataset(raw, tmp_path / "shards", shard_size=16)
    return tmp_path / "shards"


@pytest.fixture
def lengths(tokenizer):
    """Tokens of each sample without its images, encoded one by one."""
    encoder = TextEncoder(datapipe.TextSpec(tokenizer=tokenizer, template="chatml"))
    texts = [SampleText(None, record, len(record.get("image", ()))) for record in records()]
    return np.array([len(text.tokens) for text in encoder.encode(texts)])  # type: ignore


@pytest.fixture(scope="session")
def read():
    """Reads the one JSON object that a command printed."""

    def parse(result):
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.count("\n") == 1
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    return parse
