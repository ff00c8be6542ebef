"""Folders of images, with texts beside them or elsewhere, and odd files among them."""

from __future__ import annotations

import unicodedata
from typing import Any

from .pictures import picture
from .raw import Held, Raw
from .table import Fate, N, captioned, layout, packed, refused, textless


def pairs(raw: Raw, folder: str = "", ext: str = "jpg", text: str = "txt") -> list[Any]:
    for n in N:
        raw.image(f"{folder}{n:03d}.{ext}", n, kind=ext.lower())
        raw.text(f"{folder}{n:03d}.{text}", f"text {n}")
    return [captioned(n, f"text {n}") for n in N]


@layout("masks beside the images")
def masks_beside(raw: Raw) -> tuple[Fate, ...]:
    samples = pairs(raw)
    for n in N:
        raw.image(f"{n:03d}_mask.png", 100 + n)
    silent = [textless(100 + n) for n in N]
    return (
        packed(*samples, says=(("mask", 8),)),
        packed(*samples, *silent, says=(("no text", 8),)),
        packed(*samples, rejects=8),
        refused("mask"),
    )


@layout("JSON of unknown fields beside each image", map="caption=info.title")
def json_unknown(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{n}.jpg", n)
        raw.json(f"{n}.json", {"info": {"title": f"text {n}"}})
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("nested folders")
def nested(raw: Raw) -> Fate:
    for n in N:
        folder = "/".join(str(part) for part in range(n % 4))
        name = f"{folder}/{n}" if folder else f"{n}"
        raw.image(f"{name}.jpg", n)
        raw.text(f"{name}.txt", f"text {n}")
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("equal names in several folders")
def equal_names(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{n}/image.jpg", n)
        raw.text(f"{n}/image.txt", f"text {n}")
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("images without an extension")
def unnamed(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.bytes(f"{n:04d}", picture(n))
        raw.held.append(Held((f"{n:04d}",), "image", n))
        raw.text(f"{n:04d}.txt", f"text {n}")
    return packed(*(captioned(n, f"text {n}") for n in N)), refused("extension|recognised")


@layout("records of images without an extension")
def unnamed_records(raw: Raw) -> Fate:
    for n in N:
        raw.bytes(f"images/{n:04d}", picture(n))
        raw.held.append(Held((f"{n:04d}",), "image", n))
    raw.jsonl("data.jsonl", [{"image": f"images/{n:04d}", "caption": f"text {n}"} for n in N])
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("names in capitals")
def capitals(raw: Raw) -> Fate:
    return packed(*pairs(raw, ext="JPG", text="TXT"))


@layout("an image in NFD and its text in NFC")
def two_forms(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.image(unicodedata.normalize("NFD", f"é{n}") + ".jpg", n)
        raw.text(f"é{n}.txt", f"text {n}")
    samples = [captioned(n, f"text {n}") for n in N]
    return packed(*samples), refused("é0.txt")


@layout("boxes of Pascal VOC")
def voc(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.image(f"JPEGImages/{n}.jpg", n)
        raw.other(f"Annotations/{n}.xml", b"<annotation></annotation>")
    names = ("no text", 8), ("xml|markup", 8)
    return packed(*map(textless, N), says=names), packed(*map(textless, N), rejects=8, says=names)


@layout("hidden files and those of systems")
def litter(raw: Raw) -> Fate:
    samples = pairs(raw)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._000.jpg", ".cache/a.jpg"):
        raw.bytes(name, b"no data")
    return packed(*samples)


@layout("texts alone")
def texts(raw: Raw) -> Fate:
    for n in N:
        raw.text(f"{n}.txt", f"text {n}")
    return refused("recognised|image")
