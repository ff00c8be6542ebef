"""A small packed dataset of real photographs: several images, text alone, several shards."""

import gc
import shutil
import textwrap
import threading
from importlib.metadata import files as files_of
from pathlib import Path

import pytest
import skimage
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import datapipe
from datapipe.loader import work
from datapipe.loader.device.prefetcher import DevicePrefetcher
from tests.waiting import PATIENCE
from tests.workers.process_list import left, worker_processes

from .damage import overwrite_image

PHOTOS = Path(skimage.__file__).parent / "data"
SAMPLES = 37
DAMAGED = ("000000006", "000000020")
IMAGE_ID = 3  # `<image>` of the tokenizer


@pytest.fixture(scope="session")
def packed(tmp_path_factory, make_llava):
    """37 samples in five shards: every 7th has two images, every 10th none."""
    raw = tmp_path_factory.mktemp("raw")
    records = []
    photos = [Image.open(PHOTOS / name).convert("RGB") for name in ("chelsea.png", "rocket.jpg")]
    for number in range(SAMPLES):
        count = 0 if number % 10 == 9 else 2 if number % 7 == 3 else 1
        ending = "png" if number % 5 == 0 else "jpg"
        names = [f"{number}-{image}.{ending}" for image in range(count)]
        for image, name in enumerate(names):
            left = (number * 13 + image * 50) % 120
            crop = photos[number % 2].crop((left, left, left + 160 + number, left + 120))
            crop.save(raw / name)
        turns = [
            {"from": "human", "value": "<image>" * count + f"What is number {number}?"},
            {"from": "gpt", "value": f"It is {number}."},
        ]
        images = {"image": names[0] if count == 1 else names} if names else {}
        records.append({"id": f"id-{number}", "conversations": turns, **images})
    make_llava(raw, records)
    out = tmp_path_factory.mktemp("packed") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=8)
    return out


@pytest.fixture
def make(packed):
    """Makes loaders of small images on `packed`."""

    def make_loader(**options):
        if not options.keys() & {"pack", "max_tokens"}:
            options.setdefault("batch_size", 4)
        options.setdefault("num_workers", 2)
        options.setdefault("image", datapipe.ImageSpec(size=32))
        return datapipe.make_loader(packed, **options)

    return make_loader


@pytest.fixture
def source(packed):
    """Makes sources of raw samples on `packed`."""

    def make_source(**options):
        return datapipe.webdataset_source(packed, **{"batch_size": 4, **options})

    return make_source


@pytest.fixture
def make_raw(packed):
    """Makes loaders of the same samples as `source`, for their order."""

    def make_loader(**options):
        options = {"batch_size": 4, "image": None, "num_workers": 0, **options}
        return datapipe.make_loader(packed, **options)

    return make_loader


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A small byte-level BPE tokenizer for ChatML, trained on the texts of installed packages."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"],
    )
    texts = [
        Path(str(file.locate())).read_text("utf-8", "replace")
        for file in files_of("numpy") or ()
        if file.name.upper().startswith("LICENSE")
    ]
    made.train_from_iterator([*texts, "user assistant What is number It is"], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def text(tokenizer):
    """Makes a `TextSpec` of ChatML with six tokens an image."""

    def make(**options):
        options = {"template": "chatml", "image_tokens": 6} | options
        return datapipe.TextSpec(tokenizer=tokenizer, **options)

    return make


@pytest.fixture(scope="session")
def vocabulary(tokenizer):
    """The tokenizer with the tokens of Qwen2-VL, whose images never follow each other directly."""
    made = Tokenizer.from_file(str(tokenizer))
    made.add_special_tokens(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"])
    return made


@pytest.fixture
def qwen(vocabulary):
    """Makes a `TextSpec` of ChatML for Qwen2-VL."""

    def make(**options):
        defaults = {"image_token": "<|image_pad|>", "image_tokens": "native"}
        return datapipe.TextSpec(tokenizer=vocabulary, template="chatml", **defaults | options)

    return make


@pytest.fixture
def damaged(packed, tmp_path):
    """The packed dataset with bytes of two JPEGs overwritten in place."""
    folder = tmp_path / "damaged"
    shutil.copytree(packed, folder)
    for key in DAMAGED:
        overwrite_image(folder, int(key))
    return folder


@pytest.fixture
def make_processes(make):
    return lambda **options: make(**{"workers": "processes", "shuffle": False} | options)


@pytest.fixture
def no_processes_left():
    """No worker process outlives a test and its loaders."""
    yield
    gc.collect()
    assert left(worker_processes()) == set()


@pytest.fixture
def no_threads_left():
    """No worker outlives a test, though frameworks keep iterators in reference cycles."""
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("datapipe-worker"):
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def three_threads():
    """Torch takes three threads during a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pretend_gpu(monkeypatch):
    """A function that lets "cuda" be there, and a number of CPUs; batches stay on the CPU."""

    def pretend(cpus=2):
        for name, stand_in in {
            "default_workers": lambda: cpus,
            "resolve_device": lambda device: torch.device(device, 0),
            "DevicePrefetcher": lambda _, **options: DevicePrefetcher("cpu", **options),
        }.items():
            monkeypatch.setattr(work, name, stand_in)

    return pretend


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Makes a module of a user's functions, that workers can import."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source):
        name = f"user_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return __import__(name)

    return write
