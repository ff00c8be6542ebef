"""COCO captions: one JSON object whose `images` and `annotations` are joined by image id.

Source of the layout: https://cocodataset.org/#format-data, "Image Captioning".
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from datapipe.errors import PackError, SampleError
from datapipe.index.imageinfo import is_image_extension
from datapipe.pack.captionjoin import CaptionJoin, caption_join, identity
from datapipe.pack.raw import RawImage, RawSample, ReadOptions, Reject, printable
from datapipe.pack.records.fields import image_blob, rejected
from datapipe.pack.records.files import key_of_record, plain
from datapipe.pack.records.jsonmembers import read_member_arrays
from datapipe.pack.unpack import packed_images

_ARRAYS = ("images", "annotations")
_LOOK = 8 << 20  # `info`, `licenses` and `categories` may stand before the arrays
_PROBED = 50  # images whose files are looked for


class CocoReader:
    """`{images: [{id, file_name}], annotations: [{id, image_id, caption}]}`, in either order.

    A sample is an image: its caption is the first of its annotations', its record holds them all.
    """

    name = "coco"
    summary = "COCO captions JSON: images and annotations joined by image id (see --image-root)"
    fallback = False
    takes = frozenset({"image_root", "key_from"})

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        return any(map(_fits, _json_files(raw)))

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        return sum(_marks(_annotations(raw), b'"file_name"'))

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        path = _annotations(raw)
        root = _image_root(path, options.image_root)
        arrays = read_member_arrays(path, _ARRAYS)
        annotations = ((number, entry) for name, number, entry in arrays if name == _ARRAYS[1])
        with caption_join(options.scratch) as join:
            if not join.load(annotations):
                raise _without_captions(path)
            yield from _images(path, root, options, join)
            yield from join.left_over(f"{printable(path.name)}: annotations")


# --- which file -------------------------------------------------------------------------------


def _json_files(raw: Path) -> Iterator[Path]:
    """JSON files that are given, or that lie in the folder or in its `annotations`, by name.

    Sidecars of images are left out.
    """
    if raw.is_file():
        if raw.suffix.lower() == ".json":
            yield raw
        return
    for folder in (raw, raw / "annotations"):
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_file())
        except OSError:
            continue
        parts = [name.rpartition(".") for name in names]
        images = {stem for stem, _, ext in parts if is_image_extension(ext)}
        for stem, _, ext in parts:
            if ext.lower() == "json" and stem not in images:
                yield folder / f"{stem}.{ext}"


def _fits(path: Path) -> bool:
    """Whether the file is of COCO's shape, with captions or without."""
    with closing(read_member_arrays(path, _ARRAYS, most=_LOOK)) as entries:
        try:
            name, _, entry = next(entries, ("", 0, None))
        except PackError:
            return False
    field = "file_name" if name == "images" else "image_id"
    return isinstance(entry, dict) and "id" in entry and field in entry


def _annotations(raw: Path) -> Path:
    if raw.is_file():
        if not _mentions_captions(raw):
            raise _without_captions(raw)
        return raw
    fitting = list(filter(_fits, _json_files(raw)))
    if not fitting:
        raise PackError(
            f"{raw}: no .json file here or in {raw / 'annotations'} holds COCO's `images` and "
            "`annotations`; give the annotation file itself"
        )
    captioned = list(filter(_mentions_captions, fitting))
    if not captioned:
        raise _without_captions(fitting[0])
    if len(captioned) > 1:
        names = ", ".join(path.relative_to(raw).as_posix() for path in captioned)
        raise PackError(
            f"{raw} holds several files of captions ({names}); give one of them, with "
            "--image-root and the folder of its images"
        )
    return captioned[0]


def _mentions_captions(path: Path) -> bool:
    """Whether the word stands in the file, as it does in every file of captions."""
    return next(_marks(path, b'"caption"'), None) is not None


def _marks(path: Path, mark: bytes) -> Iterator[int]:
    """How often a word stands in each chunk of the file that has it."""
    tail = b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                if count := (tail + chunk).count(mark):
                    yield count
                tail = chunk[1 - len(mark) :]
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror}") from error


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


# --- where the images lie ---------------------------------------------------------------------


def _image_root(path: Path, given: Path | None) -> Path:
    """The folder that file names start from: the given one, or the only one that holds some.

    Raises:
        PackError: it is not there, or which it is cannot be told.
    """
    if given is not None:
        if not given.is_dir():
            raise PackError(f"--image-root {given}: no such folder")
        return given
    names = _first_names(path)
    here = path.absolute().parent
    if not names:
        return here
    split = path.stem.rpartition("_")[2]
    tried = {
        folder.resolve(): folder
        for base in (here, here.parent)
        for folder in (base, base / split, base / "images")
    }
    holding = [
        folder
        for folder in tried.values()
        if any(os.path.isfile(os.path.join(folder, name)) for name in names)
    ]
    if len(holding) == 1:
        return holding[0]
    if holding:
        raise PackError(
            f"{path}: images of these names lie in several folders "
            f"({', '.join(map(str, holding))}); name one with --image-root"
        )
    raise PackError(
        f"{path}: its images (the first is {printable(names[0])}) lie in none of "
        f"{', '.join(map(str, tried.values()))}; name their folder with --image-root"
        + (f", or: {said}" if (said := packed_images((here, here.parent))) else "")
    )


def _first_names(path: Path) -> list[str]:
    """Relative file names of the first images."""
    with closing(read_member_arrays(path, {"images"})) as entries:
        first = [entry for _, _, entry in itertools.islice(entries, _PROBED)]
    names = [entry.get("file_name") for entry in first if isinstance(entry, dict)]
    texts = [name for name in names if isinstance(name, str) and name]
    return [name for name in texts if not name.startswith("/") and "://" not in name]


# --- samples ---------------------------------------------------------------------------------


def _images(
    path: Path, root: Path, options: ReadOptions, join: CaptionJoin
) -> Iterator[RawSample | Reject]:
    started = False
    for name, number, image in read_member_arrays(path, _ARRAYS):
        if name == "images":
            started = True
            yield _sample(path, number, image, root, options, join)
        elif started:
            return


def _sample(
    path: Path,
    number: int,
    image: Any,
    root: Path,
    options: ReadOptions,
    join: CaptionJoin,
) -> RawSample | Reject:
    place = f"{printable(path.name)}: images[{number}]"
    if not isinstance(image, dict):
        return Reject(place, f"entry is a {type(image).__name__}, not an object", "DecodeError")
    known = identity(image.get("id"))
    if known is None:
        reason = "`id` is missing, or is neither integer nor text"
        return Reject(place, reason, "MissingMember")
    if not join.add_image(known):
        reason = f"an image before it has the same id {known}; the captions are with that one"
        return Reject(place, reason, "DecodeError")
    file_name = image.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        return Reject(place, "image has no `file_name`", "MissingMember")
    source = f"{printable(path.name)}#{known}"
    annotations = join.captions(known)
    captions = [caption for caption, _ in annotations]
    rest = [rest for _, rest in annotations]
    try:
        blob = image_blob(file_name, root, source)
        key = key_of_record(image, options)
        record, _ = plain({**image, "captions": captions, "annotations": rest})
    except SampleError as error:
        return rejected(source, error)
    return RawSample(
        source=source,
        images=(RawImage(blob),),
        caption=captions[0] if captions else None,
        record=record,
        key=key,
    )


READER = CocoReader()
