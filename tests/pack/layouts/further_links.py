"""Relative paths as RAW, and links to folders and images."""

from __future__ import annotations

import os

from .further_folders import pairs
from .pictures import picture
from .raw import Raw
from .table import Fate, N, captioned, layout, packed


@layout("a relative path as RAW")
def relative(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"pictures/{n}.jpg", n)
    raw.csv("tables/data.csv", [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    raw.given = os.path.relpath(raw.folder / "tables" / "data.csv")
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("the folder of a relative path as RAW")
def relative_folder(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"pictures/{n}.jpg", n)
    raw.csv("tables/data.csv", [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    raw.given = os.path.relpath(raw.folder / "tables")
    return packed(*(captioned(n, f"text {n}") for n in N))


def _apart(raw: Raw, cwd: str, given: str) -> Fate:
    """Write records and images in sibling folders; give the records from a working folder."""
    for n in N:
        raw.image(f"pictures/{n}.jpg", n)
    raw.csv("tables/data.csv", [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    raw.cwd, raw.given = raw.folder / cwd, given
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("a bare folder as RAW")
def bare_folder(raw: Raw) -> Fate:
    return _apart(raw, ".", "tables")


@layout("a bare file as RAW")
def bare_file(raw: Raw) -> Fate:
    return _apart(raw, "tables", "data.csv")


@layout("the working folder as RAW")
def dot(raw: Raw) -> Fate:
    return _apart(raw, "tables", ".")


@layout("the folder above as RAW")
def above(raw: Raw) -> Fate:
    return _apart(raw, "tables", "..")


@layout("a way back and forth as RAW")
def back_and_forth(raw: Raw) -> Fate:
    return _apart(raw, ".", "tables/../tables")


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
    for n in N:
        raw.image(f"pictures/{n}.jpg", n)
    raw.csv("data.csv", [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    (raw.folder / "pictures" / "again").symlink_to("..")
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("a link to the folder of records")
def ancestor_of_named(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"images/{n}.jpg", n)
    rows = [{"image": f"images/{n}.jpg", "caption": f"text {n}"} for n in N]
    raw.jsonl("data.jsonl", rows)
    (raw.folder / "images" / "again").symlink_to(raw.folder)
    (raw.folder / "home").symlink_to(".")
    return packed(*(captioned(n, f"text {n}") for n in N))


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


@layout("links to images elsewhere")
def linked_images(raw: Raw) -> Fate:
    store = raw.folder.with_name("store")
    store.mkdir()
    for n in N:
        (store / f"{n}.bin").write_bytes(picture(n))
        raw.path(f"{n}.jpg").symlink_to(store / f"{n}.bin")
        raw.count(f"{n}.jpg", n)
        raw.text(f"{n}.txt", f"text {n}")
    return packed(*(captioned(n, f"text {n}") for n in N))
