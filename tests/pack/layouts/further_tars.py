"""Tars with other media, alone or beside images, and tars of unusual members."""

from __future__ import annotations

import gzip
import json
from typing import Any

from .pictures import medium, pages, picture
from .raw import Held, Raw
from .sources_chats import llava
from .table import (
    LAYOUTS,
    Fate,
    Layout,
    N,
    Sample,
    captioned,
    chat,
    layout,
    packed,
    refused,
)

_MEDIA = {
    "mp4": "video|mp4",
    "webm": "video|webm",
    "wav": "sound|audio|wav",
    "flac": "sound|audio|flac",
    "mp3": "sound|audio|mp3",
    "pdf": "document|pdf",
    "npy": "array|npy",
    "pth": "array|tensor|pth",
    "zip": "archive|zip",
    "jxl": "JPEG XL|jxl",
    "svg": "SVG|markup",
    "exr": "EXR",
    "bin": "bin",
    "img": r"\bimg\b",
    "jpg.gz": "gz",
}
"""Media that cannot be packed, and what a reject or a line of the report may call them."""

_IMAGES = ("tga", "ico")
"""Images that packing converts."""


def _alone(ext: str) -> Layout:
    """Return the layout of tars of a medium with a text: a text alone would teach nothing."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        members: list[tuple[str, bytes | int]] = []
        for n in N:
            members += [(f"{n:04d}.{ext}", medium(ext, n)), (f"{n:04d}.txt", f"text {n}".encode())]
        raw.tar("part-00000.tar", members)
        if ext in _MEDIA:
            fates: tuple[Fate, ...] = (refused(_MEDIA[ext]),)
        else:
            fates = ()
        if ext in (*_IMAGES, "img", "jpg.gz"):
            _are_images(raw)
            fates += (packed(*(captioned(100 + n, f"text {n}") for n in N)),)
        return fates

    return Layout(name=f"tar of {ext} and txt", make=make)


def _beside(ext: str) -> Layout:
    """Return the layout of tars of an image, a text and a medium."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        members: list[tuple[str, bytes | int]] = []
        for n in N:
            members += [(f"{n:04d}.jpg", n), (f"{n:04d}.{ext}", medium(ext, n))]
            members.append((f"{n:04d}.txt", f"text {n}".encode()))
        raw.tar("part-00000.tar", members)
        pattern = _MEDIA.get(ext, ext)
        alone = packed(*(captioned(n, f"text {n}") for n in N), says=((pattern, 8),))
        fates: tuple[Fate, ...] = (alone, refused(pattern))
        if ext in (*_IMAGES, "img", "jpg.gz"):
            _are_images(raw)
            both = [captioned((n, 100 + n), f"text {n}") for n in N]
            fates += (packed(*both, says=((pattern, 8),)),)
        return fates

    return Layout(name=f"tar of jpg, {ext} and txt", make=make)


def _are_images(raw: Raw) -> None:
    """Count the media of a raw folder as images, from number 100 on."""
    media = [item for item in raw.held if item.number is None]
    raw.held = [item for item in raw.held if item.number is not None]
    raw.held += [item._replace(number=100 + n) for n, item in enumerate(media)]


LAYOUTS += [make(ext) for ext in (*_MEDIA, *_IMAGES) for make in (_alone, _beside)]


def _pairs(raw: Raw, name: str, form: str = "{n:04d}", numbers: range = N) -> list[Sample]:
    members: list[tuple[str, bytes | int]] = []
    for n in numbers:
        key = form.format(n=n)
        members += [(f"{key}.jpg", n), (f"{key}.txt", f"text {n}".encode())]
    raw.tar(name, members)
    return [captioned(n, f"text {n}") for n in numbers]


# https://github.com/iejMac/video2dataset, "Output format": as img2dataset, with mp4.
@layout("video2dataset")
def video2dataset(raw: Raw) -> Fate:
    rows, members = [], []
    for n in N:
        row: dict[str, Any] = {"url": "http://a.b/v", "caption": f"text {n}", "key": f"{n:09d}"}
        row |= {"status": "success", "error_message": None, "clips": [[0.0, 1.0]]}
        rows.append(row)
        members += [(f"{n:09d}.mp4", medium("mp4", n)), (f"{n:09d}.txt", f"text {n}".encode())]
        members.append((f"{n:09d}.json", json.dumps(row).encode()))
    raw.tar("00000.tar", members)
    raw.parquet("00000.parquet", rows)
    raw.json("00000_stats.json", {"count": 8, "successes": 8})
    return refused("video|mp4")


@layout("video2dataset with frames")
def video_frames(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n:04d}.mp4", medium("mp4", n)), (f"{n:04d}.wav", medium("wav", n))]
        members += [(f"{n:04d}.json", json.dumps({"caption": f"text {n}"}).encode())]
    raw.tar("part.tar", members)
    return (refused("video|mp4"),)


@layout("tar of neither images nor texts")
def tar_of_features(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n:04d}.npy", medium("npy", n)), (f"{n:04d}.cls", str(n).encode())]
    raw.tar("features.tar", members)
    return refused("npy|array|image")


@layout("tar of JSON that names images it lacks")
def tar_without_its_images(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"image": f"{n:04d}.jpg", "conversations": llava("<image>\nWhat?", f"It is {n}.")}
        members.append((f"{n:04d}.json", json.dumps(row).encode()))
    raw.tar("part.tar", members)
    return refused("image")


@layout("tar of JSON that names an image, without a mark")
def tar_without_its_images_or_marks(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"image": f"{n:04d}.jpg", "caption": f"text {n}"}
        members.append((f"{n:04d}.json", json.dumps(row).encode()))
    raw.tar("part.tar", members)
    return refused("image")


def _companion(ext: str) -> Layout:
    """Return the layout of tars in which each image has another one that is about it."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        members: list[tuple[str, bytes | int]] = []
        for n in N:
            members += [(f"{n:04d}.jpg", n), (f"{n:04d}.{ext}", 100 + n)]
            members.append((f"{n:04d}.txt", f"text {n}".encode()))
        raw.tar("part.tar", members)
        alone = packed(*(captioned(n, f"text {n}") for n in N), says=((ext, 8),))
        both = packed(*(captioned((n, 100 + n), f"text {n}") for n in N), says=((ext, 8),))
        return alone, both, refused(ext)

    return Layout(name=f"tar of jpg, {ext} and txt", make=make)


LAYOUTS += [_companion(ext) for ext in ("seg.png", "depth.png", "mask.png", "canny.jpg")]


@layout("tar of numbered images and a chat")
def tar_of_several(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"conversations": llava("<image><image>\nBoth?", f"It is {n}.")}
        members += [(f"{n}.0.jpg", n), (f"{n}.1.jpg", 20 + n)]
        members.append((f"{n}.json", json.dumps(row).encode()))
    raw.tar("part.tar", members)
    return packed(*(chat((n, 20 + n), "<image><image>Both?", f"It is {n}.") for n in N))


# https://huggingface.co/datasets/BAAI/Infinity-MM: tars of an image and a record of LLaVA's form.
@layout("Infinity-MM")
def infinity_mm(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"id": str(n), "source": "llava", "image": "/path/of/the/image", "phash": [12512]}
        row |= {"conversations": llava("<image>Poem?", f"Verses {n}"), "ram++_tags": ["wall"]}
        members += [(f"{n:06d}.jpg", n), (f"{n:06d}.json", json.dumps(row).encode())]
    raw.tar("stage2/llava/000000.tar", members[:8])
    raw.tar("stage2/llava/000001.tar", members[8:])
    raw.given = raw.folder / "stage2/llava"
    return packed(*(chat(n, "<image>Poem?", f"Verses {n}") for n in N))


# https://github.com/webdataset/webdataset, ImageNet: a class and no text.
@layout("ImageNet as WebDataset")
def imagenet(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"n0144{n}.jpg", n), (f"n0144{n}.cls", b"7")]
    raw.tar("imagenet-train-000000.tar", members)
    return packed(*(Sample((n,), ()) for n in N), says=(("no text", 8),))


# https://ai.meta.com/datasets/segment-anything/: masks in the JSON, no caption.
@layout("SA-1B")
def sa1b(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"image": {"image_id": n, "file_name": f"sa_{n}.jpg", "width": 24, "height": 16}}
        row["annotations"] = [{"id": n, "segmentation": {"size": [16, 24]}, "area": 9}]  # type: ignore
        members += [(f"sa_{n}.jpg", n), (f"sa_{n}.json", json.dumps(row).encode())]
    raw.tar("sa_000000.tar", members)
    return packed(*(Sample((n,), ()) for n in N), says=(("no text", 8),)), refused("text")


@layout("tar of texts called alt.txt")
def tar_alt(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", n), (f"{n}.alt.txt", f"text {n}".encode())]
    raw.tar("part.tar", members)
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("tar of two captions")
def tar_two_captions(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", n), (f"{n}.long.txt", b"long"), (f"{n}.short.txt", b"short")]
    raw.tar("part.tar", members)
    return (refused("long.txt", "short.txt"),)


@layout("tar of a caption and another")
def tar_caption_and_another(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", n), (f"{n}.txt", f"text {n}".encode())]
        members.append((f"{n}.blip.txt", f"blip {n}".encode()))
    raw.tar("part.tar", members)
    return packed(*(captioned(n, f"text {n}") for n in N), says=(("blip", 8),)), refused("blip")


@layout("tar of a question and an answer")
def tar_question(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", n), (f"{n}.question.txt", f"What {n}?".encode())]
        members.append((f"{n}.answer.txt", f"That {n}.".encode()))
    raw.tar("part.tar", members)
    return packed(*(chat(n, f"What {n}?", f"That {n}.") for n in N))


@layout("tars of members in capitals")
def tar_capitals(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"IMG_{n}.JPG", n), (f"IMG_{n}.TXT", f"text {n}".encode())]
    raw.tar("part.tar", members)
    return packed(*(captioned(n, f"text {n}") for n in N))


@layout("tars in folders, of members in folders")
def tar_folders(raw: Raw) -> tuple[Fate, ...]:
    samples = _pairs(raw, "a/part-0.tar", "train/images/{n:04d}")
    samples += _pairs(raw, "b/part-1.tar", "./{n}", range(20, 28))
    return packed(*samples), refused("give that folder")


@layout("tars beside a link to their folder")
def tar_link(raw: Raw) -> Fate:
    samples = _pairs(raw, "part-0.tar")
    (raw.folder / "again").symlink_to(".")
    return packed(*samples)


@layout("tars with the index files of other readers")
def tar_sidecars(raw: Raw) -> Fate:
    samples = _pairs(raw, "part-0000.tar")
    raw.text("part-0000.idx", "v1.2 16\njpg 512 300 0000.jpg\n")
    raw.json("index.json", {"__kind__": "wids-shard-index-v1", "shardlist": []})
    raw.text(".nv-meta/dataset.yaml", "sample_type: CaptioningSample\n")
    return packed(*samples)


@layout("compressed tars")
def tar_gz(raw: Raw) -> Fate:
    _pairs(raw, "part-0.tar")
    path = raw.folder / "part-0.tar"
    raw.bytes("part-0.tar.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    return refused("gunzip|tar -x|decompress")


@layout("a tar of images and a captions file")
def tar_with_captions_inside(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = [(f"images/{n}.jpg", n) for n in N]
    lines = "".join(f"{n}.jpg\ttext {n}\n" for n in N)
    raw.tar("part.tar", [*members, ("captions.txt", lines.encode())])
    return refused("tar -x", "captions")


@layout("a tar of images beside its captions")
def tar_beside_captions(raw: Raw) -> tuple[Fate, ...]:
    raw.tar("images.tar", [(f"{n}.jpg", n) for n in N])
    raw.csv("captions.csv", [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    return (refused("tar"),)


@layout("tar of an image of each of two kinds")
def tar_two_kinds(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", n), (f"{n}.webp", picture(100 + n, "webp"))]
        members.append((f"{n}.txt", f"text {n}".encode()))
    raw.tar("part.tar", members)
    _are_images(raw)
    alone = packed(*(captioned(n, f"text {n}") for n in N), says=(("webp", 8),))
    return alone, packed(*(captioned((n, 100 + n), f"text {n}") for n in N)), refused("webp")


@layout("tar with a missing image and an empty one")
def tar_holes(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", b"" if n == 3 else n), (f"{n}.txt", f"text {n}".encode())]
    raw.tar("part.tar", members)
    raw.held[3] = Held(("part.tar:3",), "jpg", None)
    return packed(*(captioned(n, f"text {n}") for n in N if n != 3), rejects=1, says=("empty",))


# https://huggingface.co/datasets/mlfoundations/MINT-1T-PDF-CC-2023-23: the images of a document are
# the pages of a TIFF, and `images` names them by their places in the PDF.
@layout("MINT-1T of PDFs", pages="all")
def mint_pdf(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    samples = []
    for n in N:
        shown = [{"page": k, "xref": 9, "height": 8, "width": 8, "sha256": "a"} for k in range(2)]
        record = {
            "images": ["page_0_image_9", None, "page_1_image_9", None],
            "texts": [None, f"First of {n}.", None, f"Last of {n}."],
            "image_metadata": shown,
            "url": "http://a.b/c.pdf",
        }
        members.append((f"{n:032x}.tiff", pages([2 * n, 2 * n + 1], "tiff")))
        members.append((f"{n:032x}.json", json.dumps(record).encode()))
        text = f"First of {n}.<image>Last of {n}."
        samples.append(Sample((2 * n, 2 * n + 1), (("user", "<image>"), ("assistant", text))))
    raw.tar("CC-MAIN-00000.tar", members, account=False)
    return packed(*samples)
