"""Files of records in every spelling, and files of other formats."""

from __future__ import annotations

import gzip
import io
import json
from base64 import b64encode
from typing import Any

import pyarrow as pa

from .pictures import picture
from .raw import Raw
from .sources_captions import images_downloaded
from .sources_chats import openai, what_turns
from .table import (
    CHATS,
    LAYOUTS,
    Fate,
    Has,
    Layout,
    N,
    Sample,
    captioned,
    chat,
    layout,
    packed,
    refused,
)

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


@layout("CSV in UTF-16")
def utf16(raw: Raw) -> Fate:
    rows, _ = _rows(raw)
    raw.bytes("data.csv", _csv(rows).encode("utf-16"))
    return refused("UTF-16", "iconv")


# https://github.com/OFA-Sys/OFA, datasets.md: no header, and images as base64.
@layout("a TSV of images without a header")
def no_header(raw: Raw) -> Fate:
    lines = [f"{n}\t{b64encode(picture(n)).decode()}\ta dog, {n}\n" for n in N]
    raw.text("data.tsv", "".join(lines))
    return refused("column 2 of the first line holds an image", "names of the columns")


@layout("a CSV with the index of pandas")
def pandas_index(raw: Raw) -> Fate:
    rows, samples = _rows(raw)
    raw.csv("data.csv", [{"": n, **row} for n, row in enumerate(rows)])
    return packed(*samples)


@layout("several images in a cell")
def cell_of_names(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        names = [raw.image(f"images/{m}.jpg", m) for m in (2 * n, 2 * n + 1)]
        rows.append({"image": ";".join(names), "question": f"Which {n}?", "answer": f"That {n}."})
        samples.append(chat((2 * n, 2 * n + 1), f"Which {n}?", f"That {n}."))
    raw.csv("data.csv", rows)
    return packed(*samples)


@layout("broken JSON lines")
def broken_lines(raw: Raw) -> Fate:
    rows, samples = _rows(raw)
    lines = _lines(rows).splitlines()
    lines[3] = lines[3][:20]
    lines.insert(5, "{}")
    raw.text("data.jsonl", "\n".join(lines))
    return packed(*(samples[n] for n in N if n != 3), rejects=2, says=("data.jsonl:4",))


@layout("records, some of whose images are missing")
def missing(raw: Raw) -> Fate:
    rows, samples = _rows(raw)
    rows.insert(2, {"image": "images/no.jpg", "caption": "gone"})
    raw.jsonl("data.jsonl", rows)
    return packed(*samples, rejects=1, says=("images/no.jpg",))


@layout("records, all of whose images are missing")
def all_missing(raw: Raw) -> Fate:
    raw.jsonl("data.jsonl", [{"image": f"images/{n}.jpg", "caption": f"c {n}"} for n in N])
    return refused("missing|--image-root")


def _elsewhere(raw: Raw, form: str, named: str) -> Fate:
    """Write images, and records that name them otherwise."""
    for n in N:
        raw.image(form.format(n), n)
    raw.jsonl("data.jsonl", [{"image": named.format(n), "caption": f"c {n}"} for n in N])
    return packed(*(captioned(n, f"c {n}") for n in N))


@layout("absolute paths of another machine")
def absolute(raw: Raw) -> Fate:
    return _elsewhere(raw, "train/{}.jpg", "/home/me/data/train/{}.jpg")


@layout("paths of Windows")
def backslashes(raw: Raw) -> Fate:
    return _elsewhere(raw, "images/train/{}.jpg", "images\\train\\{}.jpg")


@layout("records that name images in other capitals")
def other_capitals(raw: Raw) -> Fate:
    return _elsewhere(raw, "images/IMG_{}.JPG", "images/IMG_{}.jpg")


@layout("file:// addresses")
def file_urls(raw: Raw) -> Fate:
    return _elsewhere(raw, "images/a b{}.jpg", f"file://{raw.folder}/images/a%20b{{}}.jpg")


@layout("two splits", include="train*")
def splits(raw: Raw) -> Fate:
    for split, start in (("train", 0), ("test", 20)):
        rows = [
            {"image": raw.cell(start + n, "image", f"data/{split}"), "caption": f"c {n}"} for n in N
        ]
        raw.parquet(f"{split}-00000-of-00001.parquet", rows)
    raw.held = raw.held[:8]
    return packed(*(captioned(n, f"c {n}") for n in N), says=("test",))


@layout("records inside one object")
def inside_object(raw: Raw) -> tuple[Fate, ...]:
    images = [raw.image(f"images/{n}.jpg", n) for n in N]
    rows = [{"image": images[n], "conversations": what_turns(n)} for n in N]
    raw.json("data.json", {"version": 1, "data": rows})
    return packed(*CHATS), refused("data", "jsonl")


@layout("records by their ids in one object")
def by_id(raw: Raw) -> tuple[Fate, ...]:
    rows = {}
    for n in N:
        path = raw.image(f"images/{n}.jpg", n)
        rows[f"k{n}"] = {"image": path, "question": f"What {n}?", "answer": f"That {n}."}
    raw.json("data.json", rows)
    return packed(*(chat(n, f"What {n}?", f"That {n}.") for n in N)), refused("jsonl|--format")


@layout("conversations as the text of a cell")
def chat_cells(raw: Raw) -> Fate:
    images = [raw.image(f"images/{n}.jpg", n) for n in N]
    rows = [{"image": images[n], "conversations": json.dumps(what_turns(n))} for n in N]
    raw.csv("data.csv", rows)
    return packed(*CHATS)


@layout("Alpaca with images")
def alpaca(raw: Raw) -> Fate:
    rows = []
    for n in N:
        row = {"instruction": "Name it.", "input": f"It is {n}.", "output": f"A {n}"}
        rows.append({**row, "images": [raw.image(f"images/{n}.jpg", n)]})
    raw.json("data.json", rows)
    return packed(*(chat(n, f"Name it.\nIt is {n}.", f"A {n}") for n in N))


@layout("Donut")
def donut(raw: Raw) -> Fate:
    rows = []
    for n in N:
        truth = json.dumps({"gt_parse": {"total": f"{n}.00"}})
        rows.append({"file_name": raw.image(f"{n}.png", n), "ground_truth": truth})
    raw.jsonl("metadata.jsonl", rows)
    return packed(*(captioned(n, Has("total", f"{n}.00")) for n in N))


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


@layout("Visual Genome, questions")
def visual_genome(raw: Raw) -> Fate:
    entries = []
    for n in N:
        raw.image(f"VG_100K/{n}.jpg", n)
        asked = {"qa_id": n, "image_id": n, "question": f"What {n}?", "answer": f"That {n}."}
        entries.append({"id": n, "qas": [asked | {"a_objects": [], "q_objects": []}]})
    raw.json("question_answers.json", entries)
    return packed(*(chat(n, f"What {n}?", f"That {n}.") for n in N))


@layout("COCO without captions")
def coco_boxes(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"train2017/{n:012d}.jpg", n)
    images = [{"id": n, "file_name": f"{n:012d}.jpg"} for n in N]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 3, 4]} for n in N]
    raw.json("annotations/instances_train2017.json", {"images": images, "annotations": boxes})
    return refused("instances|caption")


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


def _foreign(name: str, files: dict[str, bytes], says: str) -> Layout:
    """Return the layout of a format that nothing here reads."""

    def make(raw: Raw) -> Fate:
        for path, content in files.items():
            raw.other(path, content)
        return refused(says)

    return Layout(name=name, make=make)


LAYOUTS += [
    _foreign("TFRecord", {"train.tfrecord-00000-of-00001": b"\x10\0\0\0" + _TAIL}, "tfrecord"),
    _foreign("LMDB", {"data.mdb": b"\0\0\0\xde\xc0\xef\xbe" + _TAIL, "lock.mdb": _TAIL}, "mdb"),
    _foreign(
        "MDS", {"index.json": b'{"version": 2, "shards": []}', "shard.00000.mds": _TAIL}, "mds"
    ),
    _foreign("HDF5", {"data.hdf5": b"\x89HDF\r\n\x1a\n" + _TAIL}, "hdf5"),
    _foreign("pickle", {"data.pkl": b"\x80\x04]\x94." + _TAIL}, "pkl"),
    _foreign("Excel", {"data.xlsx": b"PK\x03\x04" + _TAIL}, "xlsx"),
    _foreign("SQLite", {"data.db": b"SQLite format 3\0" + _TAIL}, "db"),
    _foreign("a PDF", {"paper.pdf": b"%PDF-1.4\n" + _TAIL}, "pdf"),
    _foreign("beton of FFCV", {"train.beton": b"\0\0\0\0" + _TAIL}, "beton"),
]


@layout("text-only chats")
def text_only(raw: Raw) -> Fate:
    raw.jsonl("data.jsonl", [{"messages": openai(f"Hello {n}", f"Hi {n}")} for n in N])
    return packed(*(chat((), f"Hello {n}", f"Hi {n}") for n in N))


@layout("marks without images")
def marks_alone(raw: Raw) -> Fate:
    raw.jsonl("data.jsonl", [{"messages": openai("<image>What?", f"It is {n}.")} for n in N])
    return refused("image")


@layout("more images than marks")
def more_images(raw: Raw) -> Fate:
    paths = [[raw.image(f"{m}.jpg", m) for m in (2 * n, 2 * n + 1)] for n in N]
    raw.json("data.json", [{"image": paths[n], "conversations": what_turns(n)} for n in N])
    return refused("<image>|mark|place")


@layout("unknown roles")
def unknown_roles(raw: Raw) -> Fate:
    rows = []
    for n in N:
        turns = [{"from": "alice", "value": "Hi"}, {"from": "bob", "value": f"Hello {n}."}]
        rows.append({"image": raw.image(f"{n}.jpg", n), "conversations": turns})
    raw.json("data.json", rows)
    return refused("alice|role")


@layout("captions as TSV beside Parquet of images", join="image_id")
def captions_beside_images(raw: Raw) -> Fate:
    rows = [{"image_id": n, "image": raw.inside(n, "image")} for n in N]
    raw.parquet("images.parquet", rows)
    texts = [{"image_id": n % 8, "caption": f"text {n}"} for n in range(10)]
    raw.csv("captions.tsv", texts, "\t")
    return packed(*(captioned(n % 8, f"text {n}") for n in range(10)))
