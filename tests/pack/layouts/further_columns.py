"""Tables of images in columns of every type, and of a further column beside an image and a text."""

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .pictures import medium
from .raw import Raw
from .sources_chats import what_turns
from .table import (
    CHATS,
    LAYOUTS,
    TEXTS,
    Fate,
    Layout,
    N,
    captioned,
    counted,
    layout,
    packed,
    textless,
)

_TEXTS_OF = {"caption": (TEXTS, "text {}".format), "conversations": (CHATS, what_turns)}
"""Samples by the column of their texts, and what a row has there."""

Cell = Callable[[Raw, int], Any]


def _with_column(form: str, column: str, text: str, cell: Cell) -> Layout:
    """Return the layout of a table of an image, a further column and a text."""
    samples, text_of = _TEXTS_OF[text]

    def make(raw: Raw) -> tuple[Fate, ...]:
        inside = form == "Parquet"
        rows = []
        for n in N:
            image = raw.cell(n, "image") if inside else raw.image(f"images/{n}.jpg", n)
            rows.append({"image": image, column: cell(raw, n), text: text_of(n)})
        if inside:
            raw.parquet("data/train-00000-of-00001.parquet", rows)
        else:
            raw.jsonl("data.jsonl", rows)
        return counted(samples, column)

    return Layout(name=f"{form} of image, {column} and {text}", make=make)


def _image_cell(column: str) -> Cell:
    return lambda raw, n: raw.cell(100 + n, column)


def _image_path(raw: Raw, n: int) -> str:
    return raw.image(f"extra/{n}.png", 100 + n)


def _medium_cell(ext: str) -> Cell:
    return lambda _, n: {"bytes": medium(ext, n), "path": f"{n}.{ext}"}


LAYOUTS += [
    *(
        _with_column("Parquet", column, text, _image_cell(column))
        for column in ("depth", "mask", "conditioning_image")
        for text in ("caption", "conversations")
    ),
    *(
        _with_column("JSONL", column, text, _image_path)
        for column in ("mask", "depth_path")
        for text in ("caption", "conversations")
    ),
    *(
        _with_column("Parquet", column, text, _medium_cell(ext))
        for column, ext in (("audio", "wav"), ("video", "mp4"), ("speech", "flac"))
        for text in ("caption", "conversations")
    ),
]


_STRING = pa.string()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _held(name: str, kind: Any, cell: Any, text: Any = _STRING) -> Layout:
    """Return the layout of Parquet whose images are in a column of a type."""

    def make(raw: Raw) -> Fate:
        rows = [{"image": cell(raw.inside(n, "image")), "caption": f"text {n % 3}"} for n in N]
        raw.parquet("train.parquet", rows, pa.schema([("image", kind), ("caption", text)]))
        return packed(*(captioned(n, f"text {n % 3}") for n in N))

    return Layout(name=f"Parquet of images as {name}", make=make)


_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LAYOUTS += [
    _held("structs", _STRUCT, lambda data: {"bytes": data, "path": None}),
    _held("binary", pa.binary(), lambda data: data),
    _held("large binary", pa.large_binary(), lambda data: data),
    _held("lists of structs", pa.list_(_STRUCT), lambda data: [{"bytes": data, "path": "a"}]),
    _held("lists of binary", pa.list_(pa.binary()), lambda data: [data]),
    _held("base64", _STRING, _base64),
    _held("data URIs", _STRING, lambda data: f"data:image/png;base64,{_base64(data)}"),
    _held(
        "binary beside dictionary-encoded texts",
        pa.binary(),
        lambda data: data,
        pa.dictionary(pa.int32(), pa.string()),
    ),
]


@layout("image cells, some of them null")
def null_cells(raw: Raw) -> tuple[Fate, ...]:
    rows = [{"image": raw.cell(n, "image") if n < 6 else None, "caption": f"text {n}"} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    alone = [captioned((), f"text {n}") for n in (6, 7)]
    return packed(*TEXTS[:6], rejects=2), packed(*TEXTS[:6], *alone)


@layout("captions, some of them empty")
def empty_captions(raw: Raw) -> tuple[Fate, ...]:
    rows = [{"image": raw.cell(n, "image"), "caption": f"text {n}" if n < 6 else ""} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    return (
        packed(*TEXTS[:6], rejects=2, says=(("image|caption", 2),)),
        packed(*TEXTS[:6], textless(6), textless(7), says=(("no text", 2),)),
    )
