"""COCO captions: one JSON object whose `images` and `annotations` are joined by image id.

Source of the layout: https://cocodataset.org/#format-data, "Image Captioning".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError, SampleError
from datapipe.pack.input.disk_join import Entries, disk_join, identity
from datapipe.pack.input.raw_sample import ReadOptions, Reject, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.captions import (
    Captioned,
    CaptionFile,
    CaptionReader,
    checked_object,
    first_entry,
    first_objects,
    parse_captions,
    parsed_entries,
)
from datapipe.pack.records.images.fields import rejected
from datapipe.pack.records.images.roots import PROBED
from datapipe.pack.records.images.spelling import Spelling
from datapipe.pack.records.locate import only_one
from datapipe.pack.records.streams.json_stream import count_marks, read_member_arrays

_ARRAYS = ("images", "annotations")
_LOOK = 8 << 20  # `info`, `licenses` and `categories` may stand before the arrays
_NO_ID = "is missing, or is neither integer nor text"


class CocoReader(CaptionReader):
    """`{images: [{id, file_name}], annotations: [{id, image_id, caption}]}`, in either order.

    A sample is an image with one of its captions; its record holds them all.
    """

    name = "coco"
    summary = "COCO captions JSON: images and annotations joined by image id (see --image-root)"
    what = "COCO's captions"
    absent = (
        "no .json file here or in a folder such as annotations holds COCO's `images` and "
        "`annotations`; give the annotation file itself"
    )

    def fits(self, path: Path) -> bool:
        """Return whether the file is of COCO's shape, with captions or without."""
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

    def estimate(self, source: CaptionFile, options: ReadOptions) -> int | None:
        images = sum(count_marks(source.path, b'"file_name"'))
        if parse_captions(options.captions) != "all":
            return images
        return max(images, sum(count_marks(source.path, b'"caption"')))

    def probes(self, path: Path) -> Sequence[str]:
        names = [entry.get("file_name") for entry in first_objects(path, "images", PROBED)]
        return [name for name in names if isinstance(name, str)]

    def spellings(self, probes: Sequence[Any]) -> Sequence[Spelling]:
        return (str,)

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
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 64, 0))
        tail = b"".join(file.read().split())
    if not tail.endswith((b"]}", b"}}")):
        for _ in read_member_arrays(path, ()):  # says where it is cut off
            pass
    return PackError(
        f"{path} holds no captions: none of its `annotations` has the text `caption`; give the "
        "captions_*.json of this dataset, or pack the images alone with --format folder"
    )


def _image(path: Path, image: dict[str, Any], join: Entries) -> Captioned:
    id = identity(image.get("id"))
    if id is None:
        raise MissingMember(f"`id` {_NO_ID}")
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
    return Captioned(f"{printable(path.name)}#{id}", file_name, captions, image, record)


def _annotation(annotation: dict[str, Any]) -> tuple[str, Any]:
    """Return the image of an annotation, with its caption and its other fields."""
    caption, image = annotation.get("caption"), identity(annotation.get("image_id"))
    if caption is None:
        raise MissingMember("annotation has no `caption`")
    if not isinstance(caption, str):
        raise DecodeError(f"`caption` is a {type(caption).__name__}, not text")
    if image is None:
        raise MissingMember(f"`image_id` {_NO_ID}")
    rest = {name: annotation[name] for name in annotation if name not in ("caption", "image_id")}
    return image, [caption, rest]


READER = CocoReader()
