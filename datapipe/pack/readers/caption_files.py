"""JSON files of captions: COCO, Karpathy's splits, TextCaps, and objects of images.

Sources of the layouts: https://cocodataset.org/#format-data, "Image Captioning";
https://cs.stanford.edu/people/karpathy/deepimagesent/ (`dataset.json`, also of RSICD),
https://textvqa.org/textcaps/dataset.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError, SampleError
from datapipe.pack.input.disk_join import Entries, disk_join, id_in, identity
from datapipe.pack.input.file_starts import ends_of
from datapipe.pack.input.raw_sample import ReadOptions, Reject, printable
from datapipe.pack.input.rejected import rejected
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers.caption_list import names_image
from datapipe.pack.records.images.roots import PROBED, Spelled, are_near, spelled
from datapipe.pack.records.images.unused import unused_images
from datapipe.pack.records.locate import LOOK, only_one
from datapipe.pack.records.reader import (
    Captioned,
    CaptionReader,
    checked_object,
    first_entries,
    first_entry,
    first_objects,
    parsed_entries,
)
from datapipe.pack.records.streams.json_stream import count_marks, read_member_arrays, read_members

_FIRST = 5000  # rows of TextCaps among which the first images are looked for
# Fields that describe a caption; all others describe the image.
_ROW = ("caption_str", "caption_id", "caption_tokens")
_TEXTS = ("caption", "captions", "text")
_PROBES = 20
_ARRAYS = ("images", "annotations")
_LOOK = 8 << 20  # `info`, `licenses` and `categories` may stand before the arrays


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str] | None:
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else None


class CocoReader(CaptionReader):
    """`{images: [{id, file_name}], annotations: [{id, image_id, caption}]}`, in either order.

    A sample is an image with one of its captions; its record holds them all.
    """

    name = "coco"
    summary = "COCO captions JSON: images and annotations joined by image id (see --image-root)"
    what = "COCO's captions"
    marks = ('"caption"', '"file_name"')
    absent = (
        "no .json file here or in a folder such as annotations holds COCO's `images` and "
        "`annotations`; give the annotation file itself"
    )

    def fits(self, path: Path) -> bool:
        """Return whether the file has COCO's layout, with captions or without."""
        name, entry = first_entry(path, *_ARRAYS, most=_LOOK)
        return entry.keys() >= {"id", "file_name" if name == "images" else "image_id"}

    def choose(self, survey: Survey, options: ReadOptions) -> Path:
        if survey.is_file:
            return survey.raw
        fitting = self.find(survey, options)
        # The word stands in every file of captions.
        captioned = [p for p in fitting if next(count_marks(p, b'"caption"'), 0)]
        if fitting and not captioned:
            raise _without_captions(fitting[0])
        return only_one(survey.raw, captioned, self.what, self.absent)

    def first_images(self, path: Path) -> Sequence[Spelled]:
        names = (entry.get("file_name") for entry in first_objects(path, "images", PROBED))
        return [(name,) for name in names if isinstance(name, str)]

    def entries(self, path: Path, options: ReadOptions) -> Iterator[Captioned | Reject]:
        arrays = read_member_arrays(path, _ARRAYS)
        annotations = ((number, value) for name, number, value in arrays if name == _ARRAYS[1])
        with disk_join(options.scratch, "annotation") as (join,):
            if not join.load(parsed_entries(annotations, _annotation)):
                raise _without_captions(path)
            started = False
            for name, number, image in read_member_arrays(path, _ARRAYS):
                if name == "images":
                    started = True
                    try:
                        yield _image(path, checked_object(image), join)
                    except SampleError as error:
                        yield rejected(f"{printable(path.name)}: images[{number}]", error)
                elif started:
                    break
            source = f"{printable(path.name)}: annotations"
            yield from join.rejects(lambda number: f"{source}[{number}]", "images")


def _without_captions(path: Path) -> PackError:
    tail = b"".join(ends_of(path, 64)[1].split())
    if not tail.endswith((b"]}", b"}}")):
        for _ in read_member_arrays(path, ()):  # says where it is cut off
            pass
    return PackError(
        f"{path} holds no captions: none of its `annotations` has the text `caption`; give the "
        "captions_*.json of this dataset, or pack the images alone with --format folder"
    )


def _image(path: Path, image: dict[str, Any], join: Entries) -> Captioned:
    id = id_in(image, "id")
    if not join.claim(id):
        raise DecodeError(
            f"an image before it has the same id {id}; the captions are with that one"
        )
    file_name = image.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        raise MissingMember("image has no `file_name`")
    bodies = [body for _, body in join.of(id)]
    captions = [caption for caption, _ in bodies]
    record = {**image, "captions": captions, "annotations": [rest for _, rest in bodies]}
    return Captioned(f"{printable(path.name)}#{id}", (file_name,), captions, record)


def _annotation(annotation: dict[str, Any]) -> tuple[str, Any]:
    """Return the image of an annotation, with its caption and its other fields."""
    caption = annotation.get("caption")
    if caption is None:
        raise MissingMember("annotation has no `caption`")
    if not isinstance(caption, str):
        raise DecodeError(f"`caption` is a {type(caption).__name__}, not text")
    rest = {name: annotation[name] for name in annotation if name not in ("caption", "image_id")}
    return id_in(annotation, "image_id"), [caption, rest]


class KarpathyReader(CaptionReader):
    """`{images: [{filename, filepath, split, sentences: [{raw, tokens}]}], dataset}`.

    All splits are packed. A sample's source holds its split: `dataset.json#train/0001.jpg`.
    """

    name = "karpathy"
    summary = "Karpathy's dataset.json of COCO, Flickr30k, Flickr8k: images with their sentences"
    what = "`images` of {filename, sentences}"
    marks = ('"raw"', '"filename"')

    def fits(self, path: Path) -> bool:
        return first_entry(path, "images")[1].keys() >= {"filename", "sentences"}

    def first_images(self, path: Path) -> Sequence[Spelled]:
        return [_spelled_image(image) for image in first_objects(path, "images", PROBED)]

    def entries(self, path: Path, options: ReadOptions) -> Iterator[Captioned | Reject]:
        splits: Counter[str] = Counter()
        for _, number, image in read_member_arrays(path, {"images"}):
            try:
                name, captions = _text(checked_object(image).get("filename")), _sentences(image)
            except SampleError as error:
                yield rejected(f"{printable(path.name)}: images[{number}]", error)
                continue
            if split := _text(image.get("split")):
                splits[split] += 1
                name = f"{split}/{name}"
            source = f"{printable(path.name)}#{printable(name)}"
            yield Captioned(source, _spelled_image(image), captions, image)
        if len(splits) > 1:
            counts = ", ".join(f"{split} {count:,}" for split, count in splits.most_common())
            first = f"{printable(path.name)}#{printable(splits.most_common()[0][0])}/"
            options.notes.decide(
                f"images of all splits are packed ({counts}); a loader takes one of them with "
                f"where='source.startswith(\"{first}\")'"
            )


def _spelled_image(image: Mapping[str, Any]) -> Spelled:
    # `val2014/COCO_val2014_000000391895.jpg` of `filepath` and `filename`
    name = _text(image.get("filename"))
    return name and os.path.join(_text(image.get("filepath")), name), name


def _sentences(image: dict[str, Any]) -> list[str]:
    """Return the sentences of Karpathy's image as they were written, else their words."""
    if not _text(image.get("filename")):
        raise MissingMember("image has no `filename`")
    captions = []
    sentences = image.get("sentences")
    for sentence in sentences if isinstance(sentences, list) else [None]:
        fields = sentence if isinstance(sentence, dict) else {"raw": sentence}
        raw, tokens = fields.get("raw"), _texts(fields.get("tokens"))
        if not isinstance(raw, str) and tokens is None:
            raise DecodeError("`sentences` is no list of {raw} or {tokens}")
        captions.append(raw if isinstance(raw, str) else " ".join(tokens or ()))
    return captions


class TextCapsReader(CaptionReader):
    """`{data: [{image_id, image_path, caption_str, reference_strs}]}`.

    Each row repeats all captions of its image; they are taken only where there is no `caption_str`.
    """

    name = "textcaps"
    summary = "TextCaps: data of {image_id, caption_str}, a row for each caption"
    what = "`data` of {image_id, caption_str}"
    marks = ('"caption_str"', "")

    def fits(self, path: Path) -> bool:
        row = first_entry(path, "data")[1]
        return "image_id" in row and _captions_of_row(row) is not None

    def first_images(self, path: Path) -> Sequence[Spelled]:
        first: dict[str, Spelled] = {}
        for row in first_objects(path, "data", _FIRST):
            first.setdefault(str(row.get("image_id")), _spelled_row(row))
        return list(first.values())[:PROBED]

    def entries(self, path: Path, options: ReadOptions) -> Iterator[Captioned | Reject]:
        with disk_join(options.scratch, "caption") as (join,):
            entries = ((number, row) for _, number, row in read_member_arrays(path, {"data"}))
            join.load(parsed_entries(entries, _parse_row))
            for image in join.ids():
                rows = [row for _, row in join.of(image)]
                captions = [caption for row in rows for caption in _captions_of_row(row) or []]
                rest = {name: value for name, value in rows[0].items() if name not in _ROW}
                own = [{name: row[name] for name in _ROW[1:] if name in row} for row in rows]
                record = {**rest, "captions": captions, "annotations": own}
                source = f"{printable(path.name)}#{printable(image)}"
                yield Captioned(source, _spelled_row(rows[0]), captions, record)
            yield from join.rejects(lambda number: f"{printable(path.name)}: data[{number}]")


def _spelled_row(row: Mapping[str, Any]) -> Spelled:
    path = _text(row.get("image_path"))
    return path, os.path.basename(path), *spelled(str(row.get("image_id", "")))


def _captions_of_row(row: Mapping[str, Any]) -> list[str] | None:
    """Return the caption of a row, else all of its image; None where it has neither."""
    caption = row.get("caption_str")
    return [caption] if isinstance(caption, str) else _texts(row.get("reference_strs"))


def _parse_row(row: dict[str, Any]) -> tuple[str, Any]:
    image = identity(row.get("image_id"))
    if image is None or _captions_of_row(row) is None:
        raise MissingMember(f"row has no `{'image_id' if image is None else 'caption_str'}`")
    return image, row


class CaptionDictReader(CaptionReader):
    """`{"0001.jpg": "A dog"}`, with lists of captions, objects with `caption`, or bare stems."""

    name = "captiondict"
    summary = "captions as one JSON object: {'0001.jpg': ['A dog', 'A pup']}, stems too"
    what = "captions as one object of images, such as {'0001.jpg': ['A dog']}"

    def fits(self, path: Path) -> bool:
        found = _first_members(path, _PROBES)
        return bool(found) and all(_captions(value) is not None for value in found.values())

    def first_images(self, path: Path) -> Sequence[Spelled]:
        return list(map(spelled, _first_members(path, PROBED)))

    def find(self, survey: Survey, options: ReadOptions) -> list[Path]:
        def names_images(path: Path) -> bool:  # and holds no settings of something else
            names = _first_members(path, _PROBES)
            root = options.image_root
            return all(map(names_image, names)) or are_near(path, root, map(spelled, names))

        return list(filter(names_images, super().find(survey, options)))

    def entries(self, path: Path, options: ReadOptions) -> Iterator[Captioned | Reject]:
        for name, value in read_members(path):
            source = f"{printable(path.name)}#{printable(name)}"
            captions = _captions(value)
            if captions is None:
                found = f"value is a {type(value).__name__}"
                expected = "a caption, a list of them or an object with `caption`"
                yield Reject(source, f"{found}, not {expected}", "DecodeError")
                continue
            record = {"image": name, **(value if isinstance(value, dict) else {})}
            for field in unused_images(record, [name]):
                options.notes.pass_over(field, source, "")
            yield Captioned(source, spelled(name), captions, record)


def _first_members(path: Path, most: int) -> dict[str, Any]:
    return dict(first_entries(read_members(path, most=LOOK), most))


def _captions(value: Any) -> list[str] | None:
    if isinstance(value, dict):
        named = [value[field] for field in _TEXTS if isinstance(value.get(field), str | list)]
        return _captions(named[0]) if len(named) == 1 else None
    return [value] if isinstance(value, str) else _texts(value)


COCO = CocoReader()
READERS = (COCO, KarpathyReader(), TextCapsReader(), CaptionDictReader())
