"""Captions in files of every spelling, and files of other formats."""

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .pictures import picture
from .raw import Raw
from .table import LAYOUTS, TEXTS, Fate, Layout, N, layout, packed, refused

Rows = list[dict[str, Any]]


def _file(name: str, path: str, write: Callable[[Rows], str | bytes], *says: str) -> Layout:
    """Return the layout of captions in a file; it is refused if the refusal `says` something."""

    def make(raw: Raw) -> Fate:
        rows = [{"image": raw.image(f"images/{n}.jpg", n), "caption": f"text {n}"} for n in N]
        content = write(rows)
        raw.bytes(path, content.encode() if isinstance(content, str) else content)
        return refused(*says) if says else packed(*TEXTS)

    return Layout(name=name, make=make)


def _separated(rows: Rows, mark: str = ",") -> str:
    lines = [f'{row["image"]}{mark}"{row["caption"]}"\n' for row in rows]
    return "".join([f"image{mark}caption\n", *lines])


def _lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _object(rows: Rows) -> str:
    return json.dumps({row["image"]: row["caption"] for row in rows})


def _text(rows: Rows) -> str:
    return "".join(f"{row['image']}\t{row['caption']}\n" for row in rows)


def _utf16(rows: Rows) -> bytes:
    return _separated(rows).encode("utf-16")


LAYOUTS += [
    _file("captions as CSV", "data.csv", _separated),
    _file("captions as CSV of Excel", "data.csv", lambda rows: "\ufeff" + _separated(rows)),
    _file("captions as CSV with semicolons", "data.csv", lambda rows: _separated(rows, ";")),
    _file("captions as TSV", "data.tsv", lambda rows: _separated(rows, "\t")),
    _file("captions as JSON", "data.json", json.dumps),
    _file("captions as JSON lines", "data.json", _lines),
    _file("captions as gzip", "data.jsonl.gz", lambda rows: gzip.compress(_lines(rows).encode())),
    _file("captions as one object", "captions.json", _object),
    _file("captions as lines of a text", "captions.txt", _text),
    _file("CSV in UTF-16", "data.csv", _utf16, "UTF-16", "iconv"),
]


@layout("file:// addresses")
def file_urls(raw: Raw) -> Fate:
    rows = []
    for n in N:
        raw.image(f"images/a b{n}.jpg", n)
        url = f"file://{raw.folder}/images/a%20b{n}.jpg"
        rows.append({"image": url, "caption": f"text {n}"})
    raw.jsonl("data.jsonl", rows)
    return packed(*TEXTS)


@layout("a dataset of save_to_disk")
def arrow(raw: Raw) -> Fate:
    table = pa.table({"image": [picture(n) for n in N], "text": [f"text {n}" for n in N]})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    raw.bytes("data-00000-of-00001.arrow", buffer.getvalue())
    raw.json("dataset_info.json", {"features": {}})
    raw.json("state.json", {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    return refused("arrow")


_FOREIGN = [
    ("TFRecord", "train.tfrecord-00000-of-00001", b"\x10\0\0\0", "tfrecord"),
    ("LMDB", "data.mdb", b"\0\0\0\xde\xc0\xef\xbe", "mdb"),
    ("MDS", "shard.00000.mds", b"", "mds"),
    ("HDF5", "data.hdf5", b"\x89HDF\r\n\x1a\n", "hdf5"),
    ("pickle", "data.pkl", b"\x80\x04]\x94.", "pkl"),
    ("Excel", "data.xlsx", b"PK\x03\x04", "xlsx"),
    ("SQLite", "data.db", b"SQLite format 3\0", "db"),
    ("a PDF", "paper.pdf", b"%PDF-1.4\n", "pdf"),
    ("beton of FFCV", "train.beton", b"\0\0\0\0", "beton"),
]
"""Formats that nothing here reads: their files, how these begin, and what the refusal says."""

_BESIDE = {"LMDB": ("lock.mdb", bytes(200)), "MDS": ("index.json", b'{"version": 2, "shards": []}')}


def _foreign(name: str, path: str, start: bytes, says: str) -> Layout:
    def make(raw: Raw) -> Fate:
        raw.other(path, start + bytes(200))
        if name in _BESIDE:
            raw.other(*_BESIDE[name])
        return refused(says)

    return Layout(name=name, make=make)


LAYOUTS += [_foreign(*one) for one in _FOREIGN]
