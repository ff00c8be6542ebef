"""Lists of captions, file names of several columns, and media beside images in records."""

from __future__ import annotations

from typing import Any

from .further_columns import with_column
from .further_folders import beside_masks, pairs
from .pictures import medium
from .raw import Raw
from .sources_chats import llava
from .table import (
    LAYOUTS,
    TEXTS,
    Fate,
    Layout,
    N,
    captioned,
    counted,
    layout,
    packed,
    refused,
    textless,
)


def _captions() -> tuple[Fate, ...]:
    """Return the fates of two captions an image: a sample each, or one of them with a count."""
    each = [captioned(n, f"caption {m} of {n}") for n in N for m in range(2)]
    joined = [captioned(n, f"caption 0 of {n}\ncaption 1 of {n}") for n in N]
    return packed(*each), packed(*joined), *counted(each[::2], "caption")


_CAPTION_LISTS = [{"id": n, "captions": [f"caption {m} of {n}" for m in range(2)]} for n in N]


@layout("tar of lists of captions in JSON")
def tar_caption_lists(raw: Raw) -> tuple[Fate, ...]:
    raw.shard("part.tar", {f"{n}": {"jpg": n, "json": _CAPTION_LISTS[n]} for n in N})
    return _captions()


@layout("JSON of a list of captions beside each image")
def json_caption_lists(raw: Raw) -> tuple[Fate, ...]:
    raw.files({f"{n}": {"jpg": n, "json": _CAPTION_LISTS[n]} for n in N})
    return _captions()


@layout("tar of captions in JSON")
def tar_json_captions(raw: Raw) -> Fate:
    raw.shard("part.tar", {f"{n}": {"png": n, "json": {"caption": f"text {n}"}} for n in N})
    return packed(*TEXTS)


# https://huggingface.co/docs/datasets/image_dataset: any column `*_file_name` is one of files.
@layout("imagefolder with mask_file_name")
def mask_file_name(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        image, mask = raw.image(f"{n}.png", n), raw.image(f"m{n}.png", 100 + n)
        rows.append({"file_name": image, "text": f"text {n}", "mask_file_name": mask})
    raw.csv("metadata.csv", rows)
    return counted(TEXTS, "mask_file_name")


@layout("imagefolder with file_names")
def file_names(raw: Raw) -> tuple[Fate, ...]:
    rows, samples = [], []
    for n in N:
        names = [raw.image(f"{m}.png", m) for m in (2 * n, 2 * n + 1)]
        rows.append({"file_names": names, "text": f"text {n}"})
        samples.append(captioned((2 * n, 2 * n + 1), f"text {n}"))
    raw.jsonl("metadata.jsonl", rows)
    return packed(*samples), refused("file_names")


@layout("imagefolder with metadata.parquet")
def metadata_parquet(raw: Raw) -> Fate:
    rows = [{"file_name": raw.image(f"{n}.png", n), "text": f"text {n}"} for n in N]
    raw.parquet("metadata.parquet", rows)
    return packed(*TEXTS)


def _cells(column: str, ext: str, text: str) -> Layout:
    """Return the layout of Parquet of an image, another medium and a text."""

    def cell(_: Raw, n: int) -> dict[str, Any]:
        return {"bytes": medium(ext, n), "path": f"{n}.{ext}"}

    return with_column("Parquet", column, text, cell)


LAYOUTS += [
    _cells("audio", "wav", "caption"),
    _cells("audio", "wav", "conversations"),
    _cells("video", "mp4", "caption"),
    _cells("video", "mp4", "conversations"),
    _cells("speech", "flac", "conversations"),
]


@layout("LLaVA records of an image and a sound")
def image_and_audio(raw: Raw) -> Fate:
    rows = []
    for n in N:
        row = {"image": raw.image(f"media/{n}.jpg", n), "audio": raw.other(f"media/{n}.wav")}
        rows.append(row | {"conversations": llava("<image>\n<audio>\nWhat?", f"It is {n}.")})
    raw.json("data.json", rows)
    return refused("audio|sound")


@layout("JSONL of an image, a sound and a caption")
def image_and_audio_path(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        row = {"image": raw.image(f"media/{n}.jpg", n), "audio": raw.other(f"media/{n}.wav")}
        rows.append(row | {"caption": f"text {n}"})
    raw.jsonl("data.jsonl", rows)
    return counted(TEXTS, "audio|sound")


@layout("further images of the same stem in a folder")
def dotted(raw: Raw) -> tuple[Fate, ...]:
    pairs(raw)
    raw.files({f"{n:03d}": {"seg.png": 100 + n} for n in N})
    return beside_masks("seg")


@layout("texts above their images")
def texts_above(raw: Raw) -> tuple[Fate, ...]:
    raw.files({f"images/{n}": {"jpg": n} for n in N})
    raw.files({f"{n}": {"txt": f"text {n}"} for n in N})
    silent = [textless(n) for n in N]
    return (
        packed(*TEXTS),
        packed(*silent, rejects=8, says=(("no text", 8),)),
        packed(*silent, says=(("no text", 8), ("txt|texts", 8))),
        refused("txt|texts"),
    )
