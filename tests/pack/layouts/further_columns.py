"""Tables and records with further images beside the one that is meant, and fields of `--map`."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from .raw import Raw
from .sources_chats import llava
from .table import LAYOUTS, Fate, Layout, N, Sample, captioned, chat, layout, packed, refused


def _cells(column: str, text: str) -> Layout:
    """Return the layout of Parquet with two columns of images and a text."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        rows: list[dict[str, Any]] = []
        samples = []
        for n in N:
            row: dict[str, Any] = {"image": raw.cell(n, "image")}
            row[column] = raw.cell(100 + n, column)
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


LAYOUTS += [_cells("depth", "caption"), _cells("depth", "conversations")]


def _paths(column: str, text: str) -> Layout:
    """Return the layout of JSONL with two paths of images and a text."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        rows: list[dict[str, Any]] = []
        samples = []
        for n in N:
            row: dict[str, Any] = {"image": raw.image(f"images/{n}.jpg", n)}
            row[column] = raw.image(f"extra/{n}.png", 100 + n)
            if text == "caption":
                row["caption"] = f"text {n}"
                samples.append(captioned(n, f"text {n}"))
            else:
                row["conversations"] = llava("<image>\nWhat?", f"It is {n}.")
                samples.append(chat(n, "<image>What?", f"It is {n}."))
            rows.append(row)
        raw.jsonl("data.jsonl", rows)
        return packed(*samples, says=((column, 8),)), refused(column)

    return Layout(name=f"JSONL of image, {column} and {text}", make=make)


LAYOUTS += [_paths("mask", "caption"), _paths("depth_path", "conversations")]


def _nlvr(raw: Raw) -> list[Sample]:
    rows, samples = [], []
    for n in N:
        row: dict[str, Any] = {"question": f"Is {n} left?", "answer": ("yes", "no")[n % 2]}
        row["left_image"] = raw.cell(n, "left_image")
        rows.append(row | {"right_image": raw.cell(100 + n, "right_image")})
        samples.append(chat((n, 100 + n), f"Is {n} left?", ("yes", "no")[n % 2]))
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return samples


@layout(
    "left and right image", map="image=left_image,image=right_image,user=question,assistant=answer"
)
def left_and_right(raw: Raw) -> tuple[Fate, ...]:
    return (packed(*_nlvr(raw)),)


# https://github.com/lil-lab/nlvr, nlvr2: images are named by a part of the identifier.
@layout("NLVR2")
def nlvr2(raw: Raw) -> Fate:
    rows = []
    for n in N:
        for side in range(2):
            raw.image(f"images/train/{n}/train-{n}-0-img{side}.png", 2 * n + side)
        row = {"identifier": f"train-{n}-0-0", "sentence": f"There is {n}.", "label": "True"}
        rows.append(row | {"left_url": "http://a.b/l.jpg", "right_url": "http://a.b/r.jpg"})
    raw.jsonl("train.json", rows)
    return refused("url|image", "--")


def _held(name: str, kind: Any, cell: Any) -> Layout:
    """Return the layout of Parquet whose images are in a column of a type."""

    def make(raw: Raw) -> Fate:
        rows = [{"image": cell(raw.inside(n, "image")), "caption": f"text {n}"} for n in N]
        schema = pa.schema([("image", kind), ("caption", pa.string())])
        raw.parquet("train-00000-of-00001.parquet", rows, schema)
        return packed(*(captioned(n, f"text {n}") for n in N))

    return Layout(name=f"Parquet of images as {name}", make=make)


_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LAYOUTS += [
    _held("structs", _STRUCT, lambda data: {"bytes": data, "path": None}),
    _held("binary", pa.binary(), lambda data: data),
    _held("large binary", pa.large_binary(), lambda data: data),
    _held("lists of structs", pa.list_(_STRUCT), lambda data: [{"bytes": data, "path": "a"}]),
    _held("lists of binary", pa.list_(pa.binary()), lambda data: [data]),
    _held("base64", pa.string(), lambda data: base64.b64encode(data).decode()),
    _held(
        "data URIs",
        pa.string(),
        lambda data: "data:image/png;base64," + base64.b64encode(data).decode(),
    ),
]


@layout("table of URLs")
def urls(raw: Raw) -> Fate:
    rows = [{"url": f"https://a.b/{n}.jpg", "caption": f"text {n}"} for n in N]
    raw.parquet("part-00000.parquet", rows)
    return refused("img2dataset|download")


@layout("image cells, some of them null")
def null_cells(raw: Raw) -> tuple[Fate, ...]:
    rows = [{"image": raw.cell(n, "image") if n < 6 else None, "caption": f"text {n}"} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    samples = [captioned(n, f"text {n}") for n in range(6)]
    return packed(*samples, rejects=2), packed(
        *samples, *(captioned((), f"text {n}") for n in (6, 7))
    )


@layout("captions, some of them empty")
def empty_captions(raw: Raw) -> tuple[Fate, ...]:
    rows = [{"image": raw.cell(n, "image"), "caption": f"text {n}" if n < 6 else ""} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    samples = [captioned(n, f"text {n}") for n in range(6)]
    return (
        packed(*samples, rejects=2, says=(("image|caption", 2),)),
        packed(*samples, Sample((6,), ()), Sample((7,), ()), says=(("no text", 2),)),
    )
