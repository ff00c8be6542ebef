"""Tables and records with further images beside the one that is meant, and fields of `--map`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .pictures import picture
from .raw import Raw
from .sources_chats import openai, what_turns
from .table import (
    CHATS,
    LAYOUTS,
    TEXTS,
    Fate,
    Layout,
    N,
    captioned,
    chat,
    counted,
    layout,
    packed,
    refused,
    textless,
)

_TEXTS_OF = {"caption": (TEXTS, "text {}".format), "conversations": (CHATS, what_turns)}
"""Samples by the column of their texts, and what a row has there."""


def with_column(form: str, column: str, text: str, cell: Callable[[Raw, int], Any]) -> Layout:
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


def _cells(column: str, text: str) -> Layout:
    return with_column("Parquet", column, text, lambda raw, n: raw.cell(100 + n, column))


LAYOUTS += [
    _cells("depth", "caption"),
    _cells("mask", "caption"),
    _cells("conditioning_image", "caption"),
    _cells("depth", "conversations"),
    _cells("mask", "conversations"),
]


def _paths(column: str, text: str) -> Layout:
    return with_column("JSONL", column, text, lambda raw, n: raw.image(f"extra/{n}.png", 100 + n))


LAYOUTS += [
    _paths("mask", "caption"),
    _paths("depth", "caption"),
    _paths("mask", "conversations"),
    _paths("depth_path", "conversations"),
]


@layout("CSV of image_path and mask_path")
def csv_masks(raw: Raw) -> tuple[Fate, ...]:
    images = [raw.image(f"images/{n}.jpg", n) for n in N]
    masks = [raw.image(f"extra/{n}.png", 100 + n) for n in N]
    rows = [{"image_path": images[n], "mask_path": masks[n], "caption": f"text {n}"} for n in N]
    raw.csv("data.csv", rows)
    return counted(TEXTS, "mask_path")


# https://huggingface.co/datasets/timbrooks/instructpix2pix-clip-filtered
@layout("InstructPix2Pix")
def instruct_pix2pix(raw: Raw) -> Fate:
    rows = [
        {
            "original_prompt": f"a {n}",
            "edit_prompt": f"make it {n}",
            "original_image": raw.cell(n, "original_image"),
            "edited_image": raw.cell(100 + n, "edited_image"),
        }
        for n in N
    ]
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return refused("--map|--image-column")


# https://huggingface.co/datasets/HuggingFaceM4/FineVision keeps ratings beside the texts; here a
# list of masks beside the list of images.
@layout("Cauldron with a list of masks")
def cauldron_masks(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        texts = [{"user": f"Which {n}?", "assistant": f"That {n}."}]
        images, masks = [raw.cell(n, "images")], [raw.cell(100 + n, "masks")]
        rows.append({"images": images, "texts": texts, "masks": masks})
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return counted([chat(n, f"Which {n}?", f"That {n}.") for n in N], "masks")


@layout("messages with images and masks")
def chat_masks(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        images, masks = [raw.image(f"images/{n}.jpg", n)], [raw.image(f"extra/{n}.png", 100 + n)]
        turns = openai("<image>Which?", f"That {n}.")
        rows.append({"messages": turns, "images": images, "masks": masks})
    raw.jsonl("data.jsonl", rows)
    return counted([chat(n, "<image>Which?", f"That {n}.") for n in N], "masks")


@layout(
    "left and right image", map="image=left_image,image=right_image,user=question,assistant=answer"
)
def left_and_right(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        asked, answer = f"Is {n} left?", ("yes", "no")[n % 2]
        row = {"question": asked, "answer": answer, "left_image": raw.cell(n, "left_image")}
        rows.append({**row, "right_image": raw.cell(100 + n, "right_image")})
        samples.append(chat((n, 100 + n), asked, answer))
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return packed(*samples)


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


@layout("numbered image columns")
def numbered(raw: Raw) -> Fate:
    rows = []
    for n in N:
        cells = {"image_2": raw.cell(100 + n, "image_2"), "image_1": raw.cell(n, "image_1")}
        rows.append({"question": f"Which {n}?", "answer": f"That {n}.", **cells})
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return packed(*(chat((n, 100 + n), f"Which {n}?", f"That {n}.") for n in N))


def _mapped(raw: Raw) -> None:
    rows = []
    for n in N:
        pic, thumb = raw.image(f"pics/{n}.jpg", n), raw.image(f"extra/{n}.jpg", 100 + n)
        rows.append({"pic": pic, "thumb": thumb, "ask": f"What {n}?", "reply_text": f"That {n}."})
    raw.jsonl("data.jsonl", rows)


@layout("--map with an image", map="image=pic,user=ask,assistant=reply_text")
def map_with_image(raw: Raw) -> Fate:
    _mapped(raw)
    return packed(*(chat(n, f"What {n}?", f"That {n}.") for n in N), says=(("thumb", 8),))


@layout("--map without an image")
def map_without_image(raw: Raw) -> Fate:
    _mapped(raw)
    return refused("--map")


def _map_alone(place: str, *, inside: bool, **options: Any) -> Layout:
    """Return the layout of a column of images, with a map that names the turns alone."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        rows = []
        for n in N:
            image = raw.cell(n, "photo") if inside else raw.image(f"files/{n}.jpg", n)
            rows.append({"photo": image, "ask": f"What {n}?", "told": f"That {n}."})
        if inside:
            raw.parquet("train-00000-of-00001.parquet", rows)
        else:
            raw.jsonl("data.jsonl", rows)
        with_images = packed(*(chat(n, f"What {n}?", f"That {n}.") for n in N))
        alone = [chat((), f"What {n}?", f"That {n}.") for n in N]
        return with_images, *counted(alone, "photo")

    options = {"map": "user=ask,assistant=told", **options}
    return Layout(name=f"--map of turns alone{place}", make=make, options=options)


LAYOUTS += [
    _map_alone(", beside a column of paths", inside=False),
    _map_alone(" and --format, beside a column of paths", inside=False, format="table"),
    _map_alone(", beside a column of images", inside=True),
]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _held(name: str, kind: Any, cell: Any) -> Layout:
    """Return the layout of Parquet whose images are in a column of a type."""

    def make(raw: Raw) -> Fate:
        rows = [{"image": cell(raw.inside(n, "image")), "caption": f"text {n}"} for n in N]
        schema = pa.schema([("image", kind), ("caption", pa.string())])
        raw.parquet("train-00000-of-00001.parquet", rows, schema)
        return packed(*TEXTS)

    return Layout(name=f"Parquet of images as {name}", make=make)


_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LAYOUTS += [
    _held("structs", _STRUCT, lambda data: {"bytes": data, "path": None}),
    _held("binary", pa.binary(), lambda data: data),
    _held("large binary", pa.large_binary(), lambda data: data),
    _held("lists of structs", pa.list_(_STRUCT), lambda data: [{"bytes": data, "path": "a"}]),
    _held("lists of binary", pa.list_(pa.binary()), lambda data: [data]),
    _held("base64", pa.string(), _base64),
    _held("data URIs", pa.string(), lambda data: f"data:image/png;base64,{_base64(data)}"),
]


@layout("Parquet with dictionary-encoded texts")
def dictionary(raw: Raw) -> Fate:
    rows = [{"image": raw.inside(n, "image"), "caption": f"text {n % 3}"} for n in N]
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("image", pa.binary()), ("caption", kind)])
    raw.parquet("train-00000-of-00001.parquet", rows, schema)
    return packed(*(captioned(n, f"text {n % 3}") for n in N))


@layout("JSONL of images in base64")
def base64_lines(raw: Raw) -> Fate:
    images = [_base64(raw.inside(n, "image", kind="jpg")) for n in N]
    rows = [{"image": images[n], "conversations": what_turns(n)} for n in N]
    raw.jsonl("data.jsonl", rows)
    return packed(*CHATS)


@layout("table of URLs")
def urls(raw: Raw) -> Fate:
    rows = [{"url": f"https://a.b/{n}.jpg", "caption": f"text {n}"} for n in N]
    raw.parquet("part-00000.parquet", rows)
    return refused("img2dataset|download")


# https://huggingface.co/datasets/UCSC-VLAA/Recap-DataComp-1B: as it comes, addresses and captions.
@layout("Recap-DataComp-1B")
def recap_datacomp(raw: Raw) -> Fate:
    captions = [{"org_caption": f"a {n}", "re_caption": f"Long {n}."} for n in N]
    rows = [{"url": f"https://a.b/{n}", **captions[n], "sha256": "f"} for n in N]
    raw.parquet("data/train_data/train-00000-of-00001.parquet", rows)
    return refused("img2dataset|download|url")


@layout("table of ids", image_column="images/{image_id}.jpg")
def ids(raw: Raw) -> Fate:
    raw.files({f"images/{1000 + n}": {"jpg": n} for n in N})
    raw.csv("captions.csv", [{"image_id": 1000 + n, "caption": f"text {n}"} for n in N])
    return packed(*TEXTS)


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


# https://huggingface.co/datasets/HuggingFaceM4/COCO: a row for each caption, as an object.
@layout("COCO of HuggingFaceM4")
def coco_m4(raw: Raw) -> Fate:
    rows = []
    for n in N:
        said = {"tokens": ["a", "dog"], "raw": f"A dog, {n}.", "imgid": n, "sentid": 10 * n}
        row = {"filepath": "val2014", "sentids": [10 * n], "filename": f"{n}.jpg", "imgid": n}
        rows.append({"image": raw.cell(n, "image"), **row, "sentences": said, "cocoid": n})
    raw.parquet("train.parquet", rows)
    return packed(*(captioned(n, f"A dog, {n}.") for n in N))


# https://github.com/Luodian/Otter, mimic-it: images in base64 by their ids in one object.
@layout("MIMIC-IT")
def mimic_it(raw: Raw) -> Fate:
    raw.json("LA.json", {f"LA_IMG_{n}": _base64(picture(n)) for n in N})
    asked = {"instruction": "What is it?", "answer": "A dog.", "rel_ins_ids": []}
    data = {f"LA_INS_{n}": {**asked, "image_ids": [f"LA_IMG_{n}"]} for n in N}
    raw.json("LA_instructions.json", {"meta": {"version": "0.0.1"}, "data": data})
    return refused("LA_instructions.json.*one JSON object", "LA_IMG_0")
