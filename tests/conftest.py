"""Real photographs, cut small, and makers of small raw data out of them."""

import errno
import fcntl
import gc
import io
import itertools
import json
import os
import shutil
import signal
import tarfile
import tempfile
import threading
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As jobs in the background have it, and pass it on to what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of torch that wait for each other must not take the cores that other tests need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Slowness of a machine that others use too is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

MEASURING = (
    *("tests/profile/", "tests/monitor/", "tests/tune/test_real_loaders.py"),
    *("tests/cli/test_profile.py", "tests/cli/test_tune.py", "tests/loader/test_meter.py"),
)
"""Tests that measure what real time takes, which a machine that others use too may disturb."""


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(MEASURING):
            item.add_marker(pytest.mark.measuring)
            item.add_marker(pytest.mark.flaky(reruns=4, reruns_delay=2))
    if of_a_gpu := [item for item in items if item.get_closest_marker("gpu")]:
        import torch

        if not torch.cuda.is_available():
            for item in of_a_gpu:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish():
    """Have collections of garbage pass over what the imported libraries made, as it stays."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Have the collections of a module's tests pass over what earlier modules left behind.

    Fixtures of a test are gone here, and not before: cycles among them could not be collected once
    they were passed over.
    """
    done = yield
    for thread in threading.enumerate():
        if thread.name == "datapipe-kernel":  # it would disturb a next test that counts or measures
            thread.join()
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


HTML = b"<!DOCTYPE html><html><body>404 Not Found</body></html>"


@cache
def _photo(name):
    with (files("skimage") / "data" / name).open("rb") as file:
        return Image.open(file).convert("RGB")


def _crop(name="chelsea.png", size=(48, 32), left=90):
    """A crop of a photograph; `size` is (width, height)."""
    return _photo(name).crop((left, 60, left + 4 * size[0], 60 + 4 * size[1])).resize(size)


def _encode(image=None, kind="JPEG", **save):
    """An image (by default a crop of a photograph) in the form of a file."""
    buffer = io.BytesIO()
    (_crop() if image is None else image).save(buffer, kind, **save)
    return buffer.getvalue()


def _jpeg(number):
    """The photograph of sample `number`: its size and its crop tell it from its neighbours."""
    name = ("chelsea.png", "coffee.png", "rocket.jpg")[number % 3]
    return _encode(_crop(name, (40 + number % 7, 30 + number % 5), 50 + number), quality=80)


def _make_folder(root, samples=8):
    """Images `NNN.jpg`, each with a caption `NNN.txt`."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(samples):
        (root / f"{number:03d}.jpg").write_bytes(_jpeg(number))
        (root / f"{number:03d}.txt").write_text(f"photograph {number}", encoding="utf-8")
    return root


def _make_broken(root):
    """Four images that cannot be used: empty, a page, cut off, and cut in its header."""
    whole = _jpeg(0)
    (root / "empty.jpg").write_bytes(b"")
    (root / "page.jpg").write_bytes(HTML)
    (root / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "head.jpg").write_bytes(whole[:30])


def _make_llava(root, records, name="data.json"):
    """An annotation file, and the images that its records name and that are not there yet."""
    records = list(records)
    for record in records:
        paths = record.get("image") if isinstance(record, dict) else None
        paths = paths if isinstance(paths, list) else [paths]
        for path in (path for path in paths if path and isinstance(path, str)):
            if not (root / path).exists():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(_jpeg(len(path)))
    root.mkdir(parents=True, exist_ok=True)
    if name.endswith(".jsonl"):
        text = "".join(json.dumps(record) + "\n" for record in records)
    else:
        text = json.dumps(records, indent=1)
    (root / name).write_text(text, encoding="utf-8")
    return root / name


def _make_tar(path, members, format=tarfile.USTAR_FORMAT):
    """A tar as Python writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def _contents(folder):
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _members(folder):
    """Members of every sample of a folder of tars by key and extension, as Python reads them."""
    samples: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for info in tar:
                key, _, ext = info.name.partition(".")
                samples.setdefault(key, {})[ext] = tar.extractfile(info).read()  # type: ignore
    return samples


def _rejects(out):
    return [json.loads(line) for line in (out / "rejects.jsonl").read_text("utf-8").splitlines()]


def _run(*arguments):
    """The outcome of the `datapipe` command in this process, whose output is no terminal."""
    from typer.testing import CliRunner

    from datapipe.cli.command import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _as_fixture(function, name):
    return pytest.fixture(lambda: function, scope="session", name=name)


crop = _as_fixture(_crop, "crop")
encode = _as_fixture(_encode, "encode")
jpeg = _as_fixture(_jpeg, "jpeg")
make_folder = _as_fixture(_make_folder, "make_folder")
make_broken = _as_fixture(_make_broken, "make_broken")
make_llava = _as_fixture(_make_llava, "make_llava")
make_tar = _as_fixture(_make_tar, "make_tar")
contents = _as_fixture(_contents, "contents")
members = _as_fixture(_members, "members")
rejects = _as_fixture(_rejects, "rejects")
run = _as_fixture(_run, "run")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A token for each byte, so that one character may have several."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
    ids = {token: number for number, token in enumerate([*alphabet, *specials])}
    made = Tokenizer(models.BPE(ids, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(specials)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def kernel_loader(monkeypatch):
    """The loader of the kernel that writes pixels, of a process that has written none."""
    from datapipe.decode import normalize
    from datapipe.late_module import LateModule

    fresh = LateModule(normalize.KERNEL.name, after=normalize.KERNEL.after)
    monkeypatch.setattr(normalize, "KERNEL", fresh)
    return fresh


@pytest.fixture(params=["torch", "kernel"])
def kernel(request, kernel_loader):
    """Both ways of writing pixels, whatever the tests before have loaded."""
    if request.param == "kernel":
        kernel_loader.load()
    return str(request.param)


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty folder, which is the system's for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def without_locks(monkeypatch):
    """No file system has locks."""

    def refused(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)


@pytest.fixture
def free_space(monkeypatch):
    """Sets how much of every disk is free."""
    usage = shutil.disk_usage("/")

    def set_free(size):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=size))

    return set_free


@pytest.fixture
def full_disk(free_space):
    """Every disk has 10 KB free."""
    free_space(10_000)


@pytest.fixture
def failing_disk(monkeypatch):
    """A context in which a function of `os` finds the disk full, in the calls `fails` says."""

    @contextmanager
    def failing(name, fails):
        real, calls = getattr(os, name), itertools.count(1)

        def call(*args, **options):
            is_reading = name == "open" and not args[1] & os.O_CREAT
            if not is_reading and fails(next(calls)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, call)
            yield

    return failing


@pytest.fixture
def deny(monkeypatch, tmp_path):
    """A function that lets nothing be made in a folder, not even by root; `cache/` is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def denied(folder, code=errno.EROFS):
        mkdir, access = os.mkdir, os.access

        def make(path, *args, **options):
            if Path(path).parent == folder:
                raise OSError(code, os.strerror(code))
            mkdir(path, *args, **options)

        def may(path, mode, **options):
            writes = mode & os.W_OK and Path(path).absolute() == folder
            return access(path, mode, **options) and not writes

        monkeypatch.setattr(os, "mkdir", make)
        monkeypatch.setattr(os, "access", may)

    return denied
