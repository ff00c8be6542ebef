"""LLaVA and ShareGPT4V: JSON or JSONL records with `image` and `conversations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.imageinfo import EXTENSIONS
from datapipe.pack.jsonstream import count_records, first_record, read_records
from datapipe.pack.raw import Blob, RawImage, RawSample, ReadOptions, Reject, printable

PLACEHOLDER = "<image>"


class LlavaReader:
    """`{id, image: path | [paths] | absent, conversations: [{from, value}]}`."""

    name = "llava"
    summary = "LLaVA / ShareGPT4V JSON or JSONL: id, image, conversations (see --image-root)"
    fallback = False
    takes = frozenset({"image_root"})

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        return bool(_candidates(raw))

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        return count_records(_annotations(raw), b'"conversations"')

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        annotations = _annotations(raw)
        root = options.image_root or annotations.parent
        if not root.is_dir():
            raise PackError(f"--image-root {root}: no such folder")
        for number, record in enumerate(read_records(annotations)):
            source = f"{printable(annotations.name)}#{number}"
            if isinstance(record, Reject):
                yield record
            else:
                yield _sample(source, record, root)


def _candidates(raw: Path) -> list[Path]:
    if raw.is_file():
        files = [raw]
    else:
        files = sorted(p for p in raw.glob("*.json*") if p.suffix in (".json", ".jsonl"))
    return [
        path
        for path in files
        if path.suffix in (".json", ".jsonl") and _fits(path) and not _is_sidecar(path)
    ]


def _is_sidecar(path: Path) -> bool:
    """Whether an image of the same stem lies beside it, as in a folder of images."""
    return any(path.with_suffix(f".{ext}").exists() for ext in EXTENSIONS)


def _fits(path: Path) -> bool:
    record = first_record(path)
    return isinstance(record, Mapping) and isinstance(record.get("conversations"), list)


def _annotations(raw: Path) -> Path:
    if raw.is_file():
        return raw
    candidates = _candidates(raw)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise PackError(
            f"{raw}: no .json or .jsonl file here holds records with `conversations`; "
            "give the annotation file itself"
        )
    names = ", ".join(path.name for path in candidates)
    raise PackError(
        f"{raw} holds several annotation files ({names}); give one of them, "
        f"with --image-root {raw} if its images lie here"
    )


def _sample(source: str, record: Any, root: Path) -> RawSample | Reject:
    if not isinstance(record, Mapping):
        return Reject(source, f"record is a {type(record).__name__}, not an object", "DecodeError")
    turns = record.get("conversations")
    if not isinstance(turns, list) or not turns:
        return Reject(source, "record has no `conversations`", "MissingMember")
    if not all(isinstance(t, Mapping) and isinstance(t.get("value"), str) for t in turns):
        return Reject(source, "a turn is no object with a `value` of text", "DecodeError")
    paths = record.get("image")
    paths = [] if paths in (None, "") else [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return Reject(source, "`image` is neither a path nor a list of paths", "DecodeError")
    places = sum(turn["value"].count(PLACEHOLDER) for turn in turns)
    if places and places != len(paths):
        return Reject(
            source, f"{places} {PLACEHOLDER} placeholders for {len(paths)} images", "DecodeError"
        )
    images = tuple(
        RawImage(Blob(root / path, name=path), str(number or ""))
        for number, path in enumerate(paths)
    )
    return RawSample(source=source, images=images, record=record)


READER = LlavaReader()
