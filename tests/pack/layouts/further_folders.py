"""Folders of images, with texts beside them or elsewhere, and odd files among them."""

from __future__ import annotations

import shutil
import unicodedata

from .pictures import medium, pages, picture
from .raw import Held, Raw
from .table import (
    LAYOUTS,
    TEXTS,
    Fate,
    Layout,
    N,
    Sample,
    captioned,
    chat,
    counted,
    layout,
    packed,
    refused,
    textless,
)


def pairs(raw: Raw, folder: str = "", ext: str = "jpg", text: str = "txt") -> list[Sample]:
    raw.files({f"{folder}{n:03d}": {ext: n, text: f"text {n}"} for n in N})
    return TEXTS


def beside_masks(word: str) -> tuple[Fate, ...]:
    """Return the fates of pairs beside images without texts, which are named by `word`."""
    silent = [textless(100 + n) for n in N]
    return (
        *counted(TEXTS, word),
        packed(*TEXTS, *silent, says=(("no text", 8),)),
        packed(*TEXTS, rejects=8),
    )


def _paged(kind: str) -> Layout:
    """Return the layout of files of three images each."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        numbers = [(3 * n, 3 * n + 1, 3 * n + 2) for n in N]
        files = [pages([*those], kind) for those in numbers]
        raw.files({f"{n:03d}": {kind: files[n], "txt": f"text {n}"} for n in N})
        first = [captioned(3 * n, f"text {n}") for n in N]
        whole = [captioned(numbers[n], f"text {n}") for n in N]
        return packed(*whole), *counted(first, "page|frame|animat|moving")

    return Layout(name=f"folder of {kind} of several images", make=make)


LAYOUTS += [_paged(kind) for kind in ("tif", "gif", "webp", "png")]


@layout("Parquet of multi-page TIFFs")
def paged_cells(raw: Raw) -> tuple[Fate, ...]:
    rows, first, whole = [], [], []
    for n in N:
        numbers = (3 * n, 3 * n + 1, 3 * n + 2)
        texts = f"What {n}?", f"That {n}."
        image = {"bytes": pages([*numbers], "tif"), "path": f"{n}.tif"}
        rows.append({"image": image, "question": texts[0], "answer": texts[1]})
        first.append(chat(numbers[0], *texts))
        whole.append(chat(numbers, *texts))
    raw.parquet("train-00000-of-00001.parquet", rows)
    return packed(*whole), *counted(first, "page|frame")


@layout("two texts of one stem")
def two_texts(raw: Raw) -> tuple[Fate, ...]:
    samples = pairs(raw)
    raw.files({f"{n:03d}": {"caption": f"other {n}"} for n in N})
    others = [captioned(n, f"other {n}") for n in N]
    says = (("caption|txt", 8),)
    return packed(*samples, says=says), packed(*others, says=says), refused("txt", "caption")


@layout("two images of one stem")
def two_images(raw: Raw) -> tuple[Fate, ...]:
    samples = pairs(raw)
    raw.files({f"{n:03d}": {"png": 100 + n} for n in N})
    both = [captioned(100 + n, f"text {n}") for n in N]
    named = (packed(*samples, *both, says=(("stem|name|same|png", n),)) for n in (8, 16))
    return *named, packed(*samples, rejects=8), refused("png|stem")


@layout("parallel folders")
def parallel(raw: Raw) -> Fate:
    raw.files({f"images/train/{n}": {"jpg": n} for n in N})
    raw.files({f"captions/train/{n}": {"txt": f"text {n}"} for n in N})
    return packed(*TEXTS)


# Captions of SA-1B as PixArt's SAM-LLaVA-Captions10M keeps them: a text an image.
@layout("SA-1B with captions")
def sam_captions(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"images/sa_{n}.jpg", n)
        raw.text(f"captions/sa_{n}.txt", f"The image features {n}.")
    return packed(*(captioned(n, f"The image features {n}.") for n in N))


@layout("parallel folders of images, masks and captions")
def parallel_masks(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.image(f"images/{n}.jpg", n)
        raw.image(f"masks/{n}.png", 100 + n)
        raw.text(f"captions/{n}.txt", f"text {n}")
    return beside_masks("masks")


@layout("masks beside the images")
def masks_beside(raw: Raw) -> tuple[Fate, ...]:
    pairs(raw)
    raw.files({f"{n:03d}_mask": {"png": 100 + n} for n in N})
    return beside_masks("mask")


@layout("JSON of a caption beside each image")
def json_beside(raw: Raw) -> Fate:
    records = [{"caption": f"text {n}", "tags": ["a"]} for n in N]
    raw.files({f"{n}": {"jpg": n, "json": records[n]} for n in N})
    return packed(*TEXTS)


@layout("JSON of unknown fields beside each image", map="caption=info.title")
def json_unknown(raw: Raw) -> Fate:
    raw.files({f"{n}": {"jpg": n, "json": {"info": {"title": f"text {n}"}}} for n in N})
    return packed(*TEXTS)


@layout("nested folders")
def nested(raw: Raw) -> Fate:
    for n in N:
        stem = "/".join(map(str, (*range(n % 4), n)))
        raw.files({stem: {"jpg": n, "txt": f"text {n}"}})
    return packed(*TEXTS)


@layout("equal names in several folders")
def equal_names(raw: Raw) -> Fate:
    raw.files({f"{n}/image": {"jpg": n, "txt": f"text {n}"} for n in N})
    return packed(*TEXTS)


@layout("loose pairs beside records")
def mixed(raw: Raw) -> Fate:
    pairs(raw)
    images = [raw.image(f"more/{n}.jpg", n) for n in range(20, 28)]
    raw.jsonl(
        "data.jsonl",
        [{"image": path, "caption": f"text {20 + n}"} for n, path in enumerate(images)],
    )
    return refused("--format", "8")


@layout("more images than records")
def subset(raw: Raw) -> Fate:
    for n in range(12):
        raw.image(f"images/{n}.jpg", n)
    raw.jsonl("data.jsonl", [{"image": f"images/{n}.jpg", "caption": f"text {n}"} for n in N])
    return packed(*TEXTS, says=(("image", 4),))


@layout("images under wrong extensions")
def misnamed(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{n}.jpg", n, kind=("png", "webp", "gif", "bmp")[n % 4])
        raw.text(f"{n}.txt", f"text {n}")
    return packed(*TEXTS)


@layout("images without an extension")
def unnamed(raw: Raw) -> tuple[Fate, ...]:
    _unnamed(raw, "")
    raw.files({f"{n:04d}": {"txt": f"text {n}"} for n in N})
    return packed(*TEXTS), refused("extension|recognised")


def _unnamed(raw: Raw, folder: str) -> None:
    for n in N:
        raw.bytes(f"{folder}{n:04d}", picture(n))
        raw.held.append(Held((f"{n:04d}",), "image", n))


@layout("records of images without an extension")
def unnamed_records(raw: Raw) -> Fate:
    _unnamed(raw, "images/")
    raw.jsonl("data.jsonl", [{"image": f"images/{n:04d}", "caption": f"text {n}"} for n in N])
    return packed(*TEXTS)


@layout("names in capitals")
def capitals(raw: Raw) -> Fate:
    return packed(*pairs(raw, ext="JPG", text="TXT"))


@layout("names as macOS spells them")
def decomposed(raw: Raw) -> Fate:
    rows = []
    for n in N:
        name = unicodedata.normalize("NFD", f"Größe é {n}")
        raw.image(f"images/{name}.jpg", n)
        rows.append({"file_name": f"images/Größe é {n}.jpg", "text": f"text {n}"})
    raw.jsonl("metadata.jsonl", rows)
    return packed(*TEXTS)


@layout("an image in NFD and its text in NFC")
def two_forms(raw: Raw) -> tuple[Fate, ...]:
    raw.files({unicodedata.normalize("NFD", f"é{n}"): {"jpg": n} for n in N})
    raw.files({f"é{n}": {"txt": f"text {n}"} for n in N})
    return packed(*TEXTS), refused("é0.txt")


@layout("class folders")
def classes(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{('cat', 'dog')[n % 2]}/{n}.jpg", n)
    return packed(*map(textless, N), says=(("no text", 8),))


@layout("empty files")
def empty(raw: Raw) -> Fate:
    samples = pairs(raw)
    raw.bytes("100.jpg", b"")
    raw.count("100.jpg", None)
    raw.text("100.txt", "text 100")
    raw.image("101.jpg", 101)
    raw.text("101.txt", "")
    return packed(*samples, textless(101), rejects=1, says=("100.jpg", ("no text", 1)))


@layout("media among the images")
def media(raw: Raw) -> Fate:
    samples = pairs(raw)
    for ext in ("mp4", "wav", "pdf", "npy", "zip", "svg", "jxl", "bin", "xyz"):
        raw.other(f"extra.{ext}", medium(ext))
    return packed(*samples, rejects=9)


@layout("texts without images")
def orphans(raw: Raw) -> Fate:
    samples = pairs(raw)
    raw.files({f"alone {n}": {"txt": "nothing shows this"} for n in range(3)})
    return packed(*samples, rejects=3, says=(("alone", 3),))


@layout("boxes of YOLO")
def yolo(raw: Raw) -> Fate:
    raw.files({f"images/{n}": {"jpg": n} for n in N})
    raw.files({f"labels/{n}": {"txt": f"{n} 0.5 0.5 0.1 0.2\n"} for n in N})
    raw.text("data.yaml", "nc: 8\n")
    return packed(*map(textless, N), says=(("no text", 8), ("boxes|labels", 8)))


@layout("boxes of Pascal VOC")
def voc(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.image(f"JPEGImages/{n}.jpg", n)
        raw.other(f"Annotations/{n}.xml", b"<annotation></annotation>")
    names = ("no text", 8), ("xml|markup", 8)
    return packed(*map(textless, N), says=names), packed(*map(textless, N), rejects=8, says=names)


@layout("images beside the archive they came from")
def unpacked(raw: Raw) -> Fate:
    samples = pairs(raw, "data/")
    shutil.make_archive(str(raw.folder / "data"), "zip", raw.folder / "data")
    return packed(*samples, says=("data.zip",))


@layout("records whose images are in an archive")
def zipped(raw: Raw) -> Fate:
    raw.other("images.zip", medium("zip"))
    raw.jsonl("data.jsonl", [{"image": f"images/{n}.jpg", "caption": f"c {n}"} for n in N])
    return refused("unzip|unpack")


@layout("hidden files and those of systems")
def litter(raw: Raw) -> Fate:
    samples = pairs(raw)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._000.jpg", ".cache/a.jpg"):
        raw.bytes(name, b"no data")
    return packed(*samples)


@layout("an empty folder")
def nothing(raw: Raw) -> Fate:
    return refused("nothing|empty|no known format")


@layout("texts alone")
def texts(raw: Raw) -> Fate:
    raw.files({f"{n}": {"txt": f"text {n}"} for n in N})
    return refused("recognised|image")
