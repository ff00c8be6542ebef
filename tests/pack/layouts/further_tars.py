"""Tars with other media, alone or beside images, and tars of unusual members."""

from __future__ import annotations

import gzip

from .pictures import medium, pages, picture
from .raw import Held, Raw
from .sources_chats import llava, what_turns
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
        parts = {f"{n:04d}": {ext: medium(ext, n), "txt": f"text {n}"} for n in N}
        raw.shard("part-00000.tar", parts)
        fates: tuple[Fate, ...] = (refused(_MEDIA[ext]),) if ext in _MEDIA else ()
        if ext in (*_IMAGES, "img", "jpg.gz"):
            _are_images(raw)
            fates += (packed(*(captioned(100 + n, f"text {n}") for n in N)),)
        return fates

    return Layout(name=f"tar of {ext} and txt", make=make)


def _both(word: str) -> Fate:
    """Return the fate of samples of two images, one of them counted."""
    return packed(*(captioned((n, 100 + n), f"text {n}") for n in N), says=((word, 8),))


def _beside(ext: str) -> Layout:
    """Return the layout of tars of an image, a text and a medium."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        parts = {f"{n:04d}": {"jpg": n, ext: medium(ext, n), "txt": f"text {n}"} for n in N}
        raw.shard("part-00000.tar", parts)
        pattern = _MEDIA.get(ext, ext)
        fates = counted(TEXTS, pattern)
        if ext in (*_IMAGES, "img", "jpg.gz"):
            _are_images(raw)
            fates += (_both(pattern),)
        return fates

    return Layout(name=f"tar of jpg, {ext} and txt", make=make)


def _are_images(raw: Raw) -> None:
    """Count the media of a raw folder as images, from number 100 on."""
    media = [item for item in raw.held if item.number is None]
    raw.held = [item for item in raw.held if item.number is not None]
    raw.held += [item._replace(number=100 + n) for n, item in enumerate(media)]


LAYOUTS += [make(ext) for ext in (*_MEDIA, *_IMAGES) for make in (_alone, _beside)]


def _pairs(raw: Raw, name: str, form: str = "{n:04d}", numbers: range = N) -> list[Sample]:
    raw.shard(name, {form.format(n=n): {"jpg": n, "txt": f"text {n}"} for n in numbers})
    return [captioned(n, f"text {n}") for n in numbers]


# https://github.com/iejMac/video2dataset, "Output format": as img2dataset, with mp4.
@layout("video2dataset")
def video2dataset(raw: Raw) -> Fate:
    rows, parts = [], {}
    for n in N:
        row = {"url": "http://a.b/v", "caption": f"text {n}", "key": f"{n:09d}"}
        row |= {"status": "success", "error_message": None, "clips": [[0.0, 1.0]]}
        rows.append(row)
        parts[f"{n:09d}"] = {"mp4": medium("mp4", n), "txt": f"text {n}", "json": row}
    raw.shard("00000.tar", parts)
    raw.parquet("00000.parquet", rows)
    raw.json("00000_stats.json", {"count": 8, "successes": 8})
    return refused("video|mp4")


@layout("video2dataset with frames")
def video_frames(raw: Raw) -> Fate:
    texts = [{"caption": f"text {n}"} for n in N]
    media = [{"mp4": medium("mp4", n), "wav": medium("wav", n)} for n in N]
    raw.shard("part.tar", {f"{n:04d}": {**media[n], "json": texts[n]} for n in N})
    return refused("video|mp4")


@layout("tar of neither images nor texts")
def tar_of_features(raw: Raw) -> Fate:
    raw.shard("features.tar", {f"{n:04d}": {"npy": medium("npy", n), "cls": str(n)} for n in N})
    return refused("npy|array|image")


@layout("tar of JSON that names images it lacks")
def tar_without_its_images(raw: Raw) -> Fate:
    rows = [{"image": f"{n:04d}.jpg", "conversations": what_turns(n)} for n in N]
    raw.shard("part.tar", {f"{n:04d}": {"json": rows[n]} for n in N})
    return refused("image")


@layout("tar of JSON that names an image, without a mark")
def tar_without_its_images_or_marks(raw: Raw) -> Fate:
    rows = [{"image": f"{n:04d}.jpg", "caption": f"text {n}"} for n in N]
    raw.shard("part.tar", {f"{n:04d}": {"json": rows[n]} for n in N})
    return refused("image")


def _companion(ext: str) -> Layout:
    """Return the layout of tars in which each image has another one that is about it."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        parts = {f"{n:04d}": {"jpg": n, ext: 100 + n, "txt": f"text {n}"} for n in N}
        raw.shard("part.tar", parts)
        return *counted(TEXTS, ext), _both(ext)

    return Layout(name=f"tar of jpg, {ext} and txt", make=make)


LAYOUTS += [_companion(ext) for ext in ("seg.png", "depth.png", "mask.png", "canny.jpg")]


@layout("tar of numbered images and a chat")
def tar_of_several(raw: Raw) -> Fate:
    turns = [llava("<image><image>\nBoth?", f"It is {n}.") for n in N]
    parts = {f"{n}": {"0.jpg": n, "1.jpg": 20 + n, "json": {"conversations": turns[n]}} for n in N}
    raw.shard("part.tar", parts)
    return packed(*(chat((n, 20 + n), "<image><image>Both?", f"It is {n}.") for n in N))


# https://huggingface.co/datasets/BAAI/Infinity-MM: tars of an image and a record of LLaVA's form.
@layout("Infinity-MM")
def infinity_mm(raw: Raw) -> Fate:
    for part in range(2):
        members = {}
        for n in range(4 * part, 4 * part + 4):
            row = {"id": str(n), "source": "llava", "image": "/path/of/the/image", "phash": [12512]}
            row |= {"conversations": llava("<image>Poem?", f"Verses {n}"), "ram++_tags": ["wall"]}
            members[f"{n:06d}"] = {"jpg": n, "json": row}
        raw.shard(f"stage2/llava/{part:06d}.tar", members)
    raw.given = raw.folder / "stage2/llava"
    return packed(*(chat(n, "<image>Poem?", f"Verses {n}") for n in N))


# https://github.com/webdataset/webdataset, ImageNet: a class and no text.
@layout("ImageNet as WebDataset")
def imagenet(raw: Raw) -> Fate:
    raw.shard("imagenet-train-000000.tar", {f"n0144{n}": {"jpg": n, "cls": "7"} for n in N})
    return packed(*map(textless, N), says=(("no text", 8),))


# https://ai.meta.com/datasets/segment-anything/: masks in the JSON, no caption.
@layout("SA-1B")
def sa1b(raw: Raw) -> tuple[Fate, ...]:
    parts = {}
    for n in N:
        image = {"image_id": n, "file_name": f"sa_{n}.jpg", "width": 24, "height": 16}
        masks = [{"id": n, "segmentation": {"size": [16, 24]}, "area": 9}]
        parts[f"sa_{n}"] = {"jpg": n, "json": {"image": image, "annotations": masks}}
    raw.shard("sa_000000.tar", parts)
    return packed(*map(textless, N), says=(("no text", 8),)), refused("text")


@layout("tar of texts called alt.txt")
def tar_alt(raw: Raw) -> Fate:
    raw.shard("part.tar", {f"{n}": {"jpg": n, "alt.txt": f"text {n}"} for n in N})
    return packed(*TEXTS)


@layout("tar of two captions")
def tar_two_captions(raw: Raw) -> Fate:
    parts = {f"{n}": {"jpg": n, "long.txt": "long", "short.txt": "short"} for n in N}
    raw.shard("part.tar", parts)
    return refused("long.txt", "short.txt")


@layout("tar of a caption and another")
def tar_caption_and_another(raw: Raw) -> tuple[Fate, ...]:
    parts = {f"{n}": {"jpg": n, "txt": f"text {n}", "blip.txt": f"blip {n}"} for n in N}
    raw.shard("part.tar", parts)
    return counted(TEXTS, "blip")


@layout("tar of a question and an answer")
def tar_question(raw: Raw) -> Fate:
    texts = [{"question.txt": f"What {n}?", "answer.txt": f"That {n}."} for n in N]
    raw.shard("part.tar", {f"{n}": {"jpg": n, **texts[n]} for n in N})
    return packed(*(chat(n, f"What {n}?", f"That {n}.") for n in N))


@layout("tars of members in capitals")
def tar_capitals(raw: Raw) -> Fate:
    raw.shard("part.tar", {f"IMG_{n}": {"JPG": n, "TXT": f"text {n}"} for n in N})
    return packed(*TEXTS)


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
    images = [(f"images/{n}.jpg", n) for n in N]
    lines = "".join(f"{n}.jpg\ttext {n}\n" for n in N)
    raw.tar("part.tar", [*images, ("captions.txt", lines)])
    return refused("tar -x", "captions")


@layout("a tar of images beside its captions")
def tar_beside_captions(raw: Raw) -> tuple[Fate, ...]:
    raw.tar("images.tar", [(f"{n}.jpg", n) for n in N])
    raw.csv("captions.csv", [{"image": f"{n}.jpg", "caption": f"text {n}"} for n in N])
    return (refused("tar"),)


@layout("tar of an image of each of two kinds")
def tar_two_kinds(raw: Raw) -> tuple[Fate, ...]:
    webp = [picture(100 + n, "webp") for n in N]
    raw.shard("part.tar", {f"{n}": {"jpg": n, "webp": webp[n], "txt": f"text {n}"} for n in N})
    _are_images(raw)
    both = packed(*(captioned((n, 100 + n), f"text {n}") for n in N))
    return *counted(TEXTS, "webp"), both


@layout("tar with a missing image and an empty one")
def tar_holes(raw: Raw) -> Fate:
    parts = {f"{n}": {"jpg": b"" if n == 3 else n, "txt": f"text {n}"} for n in N}
    raw.shard("part.tar", parts)
    raw.held[3] = Held(("part.tar:3",), "jpg", None)
    return packed(*TEXTS[:3], *TEXTS[4:], rejects=1, says=("empty",))


# https://huggingface.co/datasets/mlfoundations/MINT-1T-PDF-CC-2023-23: the images of a document are
# the pages of a TIFF, and `images` names them by their places in the PDF.
@layout("MINT-1T of PDFs", pages="all")
def mint_pdf(raw: Raw) -> Fate:
    parts, samples = {}, []
    for n in N:
        shown = [{"page": k, "xref": 9, "height": 8, "width": 8, "sha256": "a"} for k in range(2)]
        record = {
            "images": ["page_0_image_9", None, "page_1_image_9", None],
            "texts": [None, f"First of {n}.", None, f"Last of {n}."],
            "image_metadata": shown,
            "url": "http://a.b/c.pdf",
        }
        parts[f"{n:032x}"] = {"tiff": pages([2 * n, 2 * n + 1], "tiff"), "json": record}
        text = f"First of {n}.<image>Last of {n}."
        samples.append(Sample((2 * n, 2 * n + 1), (("user", "<image>"), ("assistant", text))))
    raw.shard("CC-MAIN-00000.tar", parts, account=False)
    return packed(*samples)
