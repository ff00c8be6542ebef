"""Lists of captions, file names of several columns, and media beside images in records."""

from __future__ import annotations

import json
from typing import Any

from .further_folders import pairs
from .pictures import medium
from .raw import Raw
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
    textless,
)


def _captions(raw: Raw) -> tuple[Fate, ...]:
    """Return the fates of two captions an image: a sample each, or one of them with a count."""
    each = [captioned(n, f"caption {m} of {n}") for n in N for m in range(2)]
    first = [captioned(n, f"caption 0 of {n}") for n in N]
    joined = [captioned(n, f"caption 0 of {n}\ncaption 1 of {n}") for n in N]
    return (
        packed(*each),
        packed(*first, says=(("caption", 8),)),
        packed(*joined),
        refused("caption"),
    )


def _record(n: int) -> dict[str, Any]:
    return {"id": n, "captions": [f"caption {m} of {n}" for m in range(2)]}


@layout("tar of lists of captions in JSON")
def tar_caption_lists(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.jpg", n), (f"{n}.json", json.dumps(_record(n)).encode())]
    raw.tar("part.tar", members)
    return _captions(raw)


@layout("JSON of a list of captions beside each image")
def json_caption_lists(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.image(f"{n}.jpg", n)
        raw.json(f"{n}.json", _record(n))
    return _captions(raw)


@layout("tar of captions in JSON")
def tar_json_captions(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members += [(f"{n}.png", n), (f"{n}.json", json.dumps({"caption": f"text {n}"}).encode())]
    raw.tar("part.tar", members)
    return packed(*(captioned(n, f"text {n}") for n in N))


# https://huggingface.co/docs/datasets/image_dataset: any column `*_file_name` is one of files.
@layout("imagefolder with mask_file_name")
def mask_file_name(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        row = {"file_name": raw.image(f"{n}.png", n), "text": f"text {n}"}
        rows.append(row | {"mask_file_name": raw.image(f"m{n}.png", 100 + n)})
    raw.csv("metadata.csv", rows)
    alone = packed(*(captioned(n, f"text {n}") for n in N), says=(("mask_file_name", 8),))
    return alone, refused("mask_file_name")


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
    for n in N:
        raw.image(f"{n}.png", n)
    raw.parquet("metadata.parquet", [{"file_name": f"{n}.png", "text": f"text {n}"} for n in N])
    return packed(*(captioned(n, f"text {n}") for n in N))


def _cells(column: str, ext: str, text: str) -> Layout:
    """Return the layout of Parquet of an image, another medium and a text."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        rows: list[dict[str, Any]] = []
        samples: list[Sample] = []
        for n in N:
            row: dict[str, Any] = {"image": raw.cell(n, "image")}
            row[column] = {"bytes": medium(ext, n), "path": f"{n}.{ext}"}
            if text == "caption":
                row["caption"] = f"text {n}"
                samples.append(captioned(n, f"text {n}"))
            else:
                row["conversations"] = llava("<image>\nWhat?", f"It is {n}.")
                samples.append(chat(n, "<image>What?", f"It is {n}."))
            rows.append(row)
        raw.parquet("data/train-00000-of-00001.parquet", rows)
        return packed(*samples, says=((column, 8),)), refused(column)

    return Layout(name=f"Parquet of image, {column} and {text}", make=make)


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
    alone = packed(*(captioned(n, f"text {n}") for n in N), says=(("audio|sound", 8),))
    return alone, refused("audio|sound")


@layout("further images of the same stem in a folder")
def dotted(raw: Raw) -> tuple[Fate, ...]:
    samples = pairs(raw)
    for n in N:
        raw.image(f"{n:03d}.seg.png", 100 + n)
    silent = [textless(100 + n) for n in N]
    return (
        packed(*samples, says=(("seg", 8),)),
        packed(*samples, *silent, says=(("no text", 8),)),
        packed(*samples, rejects=8),
        refused("seg"),
    )


@layout("texts above their images")
def texts_above(raw: Raw) -> tuple[Fate, ...]:
    for n in N:
        raw.image(f"images/{n}.jpg", n)
        raw.text(f"{n}.txt", f"text {n}")
    silent = [textless(n) for n in N]
    return (
        packed(*(captioned(n, f"text {n}") for n in N)),
        packed(*silent, rejects=8, says=(("no text", 8),)),
        packed(*silent, says=(("no text", 8), ("txt|texts", 8))),
        refused("txt|texts"),
    )
