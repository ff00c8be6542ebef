"""Tables of images in columns of every type, some of them empty."""

import base64
from typing import Any

import pyarrow as pa

from .raw import Raw
from .table import LAYOUTS, TEXTS, Fate, Layout, N, Sample, captioned, layout, packed

_STRING = pa.string()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _held(name: str, kind: Any, cell: Any, text: Any = _STRING) -> Layout:
    """Return the layout of Parquet whose images are in a column of a type."""

    def make(raw: Raw) -> Fate:
        rows = [{"image": cell(raw.inside(n, "image")), "caption": f"text {n % 3}"} for n in N]
        raw.write("train.parquet", rows, pa.schema([("image", kind), ("caption", text)]))
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
    raw.write("train-00000-of-00001.parquet", rows)
    alone = [captioned((), f"text {n}") for n in (6, 7)]
    return packed(*TEXTS[:6], rejects=2), packed(*TEXTS[:6], *alone)


@layout("captions, some of them empty")
def empty_captions(raw: Raw) -> tuple[Fate, ...]:
    rows = [{"image": raw.cell(n, "image"), "caption": f"text {n}" if n < 6 else ""} for n in N]
    raw.write("train-00000-of-00001.parquet", rows)
    return (
        packed(*TEXTS[:6], rejects=2, says=(("image|caption", 2),)),
        packed(*TEXTS[:6], Sample((6,), ()), Sample((7,), ()), says=(("no text", 2),)),
    )
