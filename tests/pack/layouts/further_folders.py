"""Folders and tars with links, archives and odd images, and relative paths as RAW."""

import gzip
import os
import shutil
from pathlib import Path

from .pictures import picture
from .raw import Raw
from .table import (
    LAYOUTS,
    TEXTS,
    Fate,
    Layout,
    N,
    Sample,
    layout,
    packed,
    refused,
)
from .templates import each, images


def pairs(raw: Raw, folder: str = "") -> list[Sample]:
    raw.files({f"{folder}{n:03d}": {"jpg": n, "txt": f"text {n}"} for n in N})
    return TEXTS


@layout("images under wrong extensions")
def misnamed(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{n}.jpg", n, kind=("png", "webp", "gif", "bmp")[n % 4])
        raw.text(f"{n}.txt", f"text {n}")
    return packed(*TEXTS)


@layout("images beside the archive they came from")
def unpacked(raw: Raw) -> Fate:
    samples = pairs(raw, "data/")
    shutil.make_archive(str(raw.folder / "data"), "zip", raw.folder / "data")
    return packed(*samples, says=("data.zip",))


@layout("a zip as RAW")
def zip_as_raw(raw: Raw) -> Fate:
    unpacked(raw)
    raw.given = raw.folder / "data.zip"
    return refused("unzip|unpack")


def _apart(raw: Raw, records: str = "tables/data.csv") -> Fate:
    """Write images and, elsewhere, records of their names."""
    raw.files({f"pictures/{n}": {"jpg": n} for n in N})
    raw.csv(records, [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    return packed(*TEXTS)


def _given(name: str, cwd: str, given: str) -> Layout:
    """Return the layout of records that are given from a working folder."""

    def make(raw: Raw) -> Fate:
        raw.cwd, raw.given = raw.folder / cwd, given
        return _apart(raw)

    return Layout(name=name, make=make)


@layout("a relative path as RAW")
def relative(raw: Raw) -> Fate:
    fate = _apart(raw)
    raw.given = os.path.relpath(raw.folder / "tables" / "data.csv")
    return fate


@layout("the folder of a relative path as RAW")
def relative_folder(raw: Raw) -> Fate:
    fate = _apart(raw)
    raw.given = os.path.relpath(raw.folder / "tables")
    return fate


LAYOUTS += [
    _given("a bare folder as RAW", ".", "tables"),
    _given("a bare file as RAW", "tables", "data.csv"),
    _given("the working folder as RAW", "tables", "."),
    _given("the folder above as RAW", "tables", ".."),
    _given("a way back and forth as RAW", ".", "tables/../tables"),
]


@layout("a relative folder of images as RAW")
def relative_images(raw: Raw) -> Fate:
    samples = pairs(raw, "inner/")
    raw.cwd, raw.given = raw.folder, "./inner/"
    return packed(*samples)


@layout("RAW is a link")
def linked_raw(raw: Raw) -> Fate:
    samples = pairs(raw)
    link = raw.folder.with_name("link")
    link.symlink_to(raw.folder)
    raw.given = link
    return packed(*samples)


@layout("a link to an ancestor")
def ancestor(raw: Raw) -> Fate:
    samples = pairs(raw, "inner/")
    (raw.folder / "inner" / "again").symlink_to("..")
    return packed(*samples, rejects=1, says=("again",))


@layout("a link to an ancestor beside records")
def ancestor_of_records(raw: Raw) -> Fate:
    fate = _apart(raw, "data.csv")
    (raw.folder / "pictures" / "again").symlink_to("..")
    return fate


@layout("a link to the folder of records")
def ancestor_of_named(raw: Raw) -> Fate:
    rows = [{"image": raw.image(f"images/{n}.jpg", n), "caption": f"text {n}"} for n in N]
    raw.jsonl("data.jsonl", rows)
    (raw.folder / "images" / "again").symlink_to(raw.folder)
    (raw.folder / "home").symlink_to(".")
    return packed(*TEXTS)


@layout("a link to a folder above RAW")
def above_raw(raw: Raw) -> tuple[Fate, ...]:
    samples = pairs(raw, "inner/")
    (raw.folder / "inner" / "again").symlink_to("..")
    raw.given = raw.folder / "inner"
    return packed(*samples, rejects=1, says=("again",)), packed(*samples, says=("again",))


@layout("a link to a folder twice")
def linked_twice(raw: Raw) -> tuple[Fate, ...]:
    samples = pairs(raw, "inner/")
    (raw.folder / "same").symlink_to("inner")
    twice = packed(*samples, *samples)
    return twice, packed(*samples, rejects=1, says=("same",)), packed(*samples, says=("same",))


@layout("links that lead nowhere")
def dangling(raw: Raw) -> Fate:
    samples = pairs(raw)
    raw.path("lost.jpg").symlink_to("nowhere.jpg")
    raw.count("lost.jpg", None)
    return packed(*samples, rejects=1, says=("lost.jpg",))


@layout("links to images elsewhere")
def linked_images(raw: Raw) -> Fate:
    store = raw.folder.with_name("store")
    store.mkdir()
    for n in N:
        (store / f"{n}.bin").write_bytes(picture(n))
        raw.path(f"{n}.jpg").symlink_to(store / f"{n}.bin")
        raw.count(f"{n}.jpg", n)
        raw.text(f"{n}.txt", f"text {n}")
    return packed(*TEXTS)


def _shard(raw: Raw) -> Path:
    return raw.shard("part-0.tar", {f"{n}": {"jpg": n, "txt": f"text {n}"} for n in N})


@layout("tars beside a link to their folder")
def tar_link(raw: Raw) -> Fate:
    _shard(raw)
    (raw.folder / "again").symlink_to(".")
    return packed(*TEXTS)


@layout("compressed tars")
def tar_gz(raw: Raw) -> Fate:
    path = _shard(raw)
    raw.bytes("part-0.tar.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    return refused("gunzip|tar -x|decompress")


@layout("file:// addresses")
def file_urls(raw: Raw) -> Fate:
    images(raw, "images/a b{n}.jpg")
    url = f"file://{raw.folder}/images/a%20b{{n}}.jpg"
    raw.jsonl("data.jsonl", each({"image": url, "caption": "text {n}"}))
    return packed(*TEXTS)
