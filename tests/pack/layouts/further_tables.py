"""Files of records in every spelling, and files of other formats."""

from __future__ import annotations

import gzip
import json
from typing import Any

from .raw import Raw
from .sources_captions import images_downloaded
from .table import LAYOUTS, Fate, Layout, N, Sample, captioned, chat, layout, packed, refused

_TAIL = bytes(200)


def _rows(raw: Raw) -> tuple[list[dict[str, Any]], list[Sample]]:
    """Write images; return rows of captions and what they make."""
    rows = [{"image": raw.image(f"images/{n}.jpg", n), "caption": f"text, {n}"} for n in N]
    return rows, [captioned(n, f"text, {n}") for n in N]


def _csv(rows: list[dict[str, Any]], mark: str = ",") -> str:
    lines = [f'{row["image"]}{mark}"{row["caption"]}"' for row in rows]
    return "\n".join([f"image{mark}caption", *lines]) + "\n"


def _file(name: str, path: str, write: Any) -> Layout:
    """Return the layout of captions in a file, which `write` makes of the rows."""

    def make(raw: Raw) -> Fate:
        rows, samples = _rows(raw)
        raw.bytes(path, write(rows))
        return packed(*samples)

    return Layout(name=name, make=make)


def _lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


LAYOUTS += [
    _file("captions as CSV", "data.csv", lambda rows: _csv(rows).encode()),
    _file("captions as CSV of Excel", "data.csv", lambda rows: _csv(rows).encode("utf-8-sig")),
    _file("captions as CSV with semicolons", "data.csv", lambda rows: _csv(rows, ";").encode()),
    _file("captions as TSV", "data.tsv", lambda rows: _csv(rows, "\t").encode()),
    _file("captions as JSON", "data.json", lambda rows: json.dumps(rows).encode()),
    _file("captions as JSON lines", "data.json", lambda rows: _lines(rows).encode()),
    _file("captions as gzip", "data.jsonl.gz", lambda rows: gzip.compress(_lines(rows).encode())),
    _file(
        "captions as one object",
        "captions.json",
        lambda rows: json.dumps({row["image"]: row["caption"] for row in rows}).encode(),
    ),
    _file(
        "captions as lines of a text",
        "captions.txt",
        lambda rows: "".join(f"{row['image']}\t{row['caption']}\n" for row in rows).encode(),
    ),
]


@layout("several images in a cell")
def cell_of_names(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        names = [raw.image(f"images/{m}.jpg", m) for m in (2 * n, 2 * n + 1)]
        rows.append({"image": ";".join(names), "question": f"Which {n}?", "answer": f"That {n}."})
        samples.append(chat((2 * n, 2 * n + 1), f"Which {n}?", f"That {n}."))
    raw.csv("data.csv", rows)
    return packed(*samples)


@layout("two splits", include="train*")
def splits(raw: Raw) -> Fate:
    for split, start in (("train", 0), ("test", 20)):
        rows = [
            {"image": raw.cell(start + n, "image", f"data/{split}"), "caption": f"c {n}"} for n in N
        ]
        raw.parquet(f"{split}-00000-of-00001.parquet", rows)
    raw.held = raw.held[:8]
    return packed(*(captioned(n, f"c {n}") for n in N), says=("test",))


# https://visualgenome.org/api/v0/: phrases of regions, which are no captions of the whole image.
@layout("Visual Genome, region descriptions")
def regions(raw: Raw) -> Fate:
    entries = []
    for n in N:
        raw.image(f"VG_100K/{n}.jpg", n)
        region = {"region_id": n, "image_id": n, "phrase": f"a thing {n}", "x": 1, "y": 2}
        entries.append({"id": n, "regions": [region | {"width": 3, "height": 4}]})
    raw.json("region_descriptions.json", entries)
    return refused("region_descriptions|regions")


# As img2dataset writes it with `--output_format parquet`: the bytes are in the column `jpg`.
@layout("CC3M by img2dataset, Parquet")
def cc3m_parquet(raw: Raw) -> Fate:
    samples, failed = images_downloaded(raw, "00000", range(10), "parquet")
    return packed(*samples, rejects=failed)


# As img2dataset writes it with `--output_format tfrecord`: the images are beside the table.
@layout("CC3M by img2dataset, TFRecord")
def cc3m_tfrecord(raw: Raw) -> Fate:
    images_downloaded(raw, "00000", range(10), "tfrecord")
    raw.other("00000.tfrecord", b"\x10\0\0\0" + _TAIL)
    return refused("tfrecord|download")


# https://ai.google.com/research/ConceptualCaptions/download: as it comes, without a header.
@layout("Conceptual Captions, not downloaded")
def cc3m_tsv(raw: Raw) -> Fate:
    lines = [f"caption {n}\thttp://a.b/{n}.jpg\n" for n in N]
    raw.text("Train_GCC-training.tsv", "".join(lines))
    return refused("download|img2dataset|URL|tsv")


def _foreign(name: str, files: dict[str, bytes], says: str) -> Layout:
    """Return the layout of a format that nothing here reads."""

    def make(raw: Raw) -> Fate:
        for path, content in files.items():
            raw.other(path, content)
        return refused(says)

    return Layout(name=name, make=make)


LAYOUTS += [
    _foreign("pickle", {"data.pkl": b"\x80\x04]\x94." + _TAIL}, "pkl"),
    _foreign("Excel", {"data.xlsx": b"PK\x03\x04" + _TAIL}, "xlsx"),
    _foreign("SQLite", {"data.db": b"SQLite format 3\0" + _TAIL}, "db"),
    _foreign("beton of FFCV", {"train.beton": b"\0\0\0\0" + _TAIL}, "beton"),
]
