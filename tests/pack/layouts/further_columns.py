"""Images in columns of every type, and cells without an image or a text."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from .raw import Raw
from .table import LAYOUTS, Fate, Layout, N, Sample, captioned, layout, packed


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
