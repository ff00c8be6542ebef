"""Samples out of members that others named: images, a caption, metadata, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember
from datapipe.index.ignore import parse_ignore
from datapipe.index.images.formats import stored_format
from datapipe.index.media import START, unread_medium
from datapipe.index.tar import contents
from datapipe.index.tar.grouping import Group, Grouped, ext_of
from datapipe.index.tar.headers import TarMember, TarScanner
from datapipe.pack.input.raw_sample import (
    Blob,
    InlineBlob,
    NamedTexts,
    Picture,
    RawImage,
    RawInput,
    RawSample,
    RawVideo,
    ReadOptions,
    Reject,
    printable,
)
from datapipe.pack.notes import Notes
from datapipe.text.sample_text import find_texts, named_texts_count, parse_text


def tar_members(path: Path, group: Group) -> list[tuple[contents.Content, Blob]]:
    """Return the members of a sample in a tar as (content, bytes)."""
    return [
        (contents.content_of(ext_of(m.name), m.start), Blob(path, m.offset, m.size, m.name))
        for m in group.members
    ]


def read_members(tar: TarScanner, label: str, options: ReadOptions) -> Iterator[TarMember]:
    """Yield the members of a tar as `kept_members` does; those that `--ignore` names are noted."""

    def leave_out(name: str, reason: str) -> None:
        options.notes.leave_out(f"{label}:{printable(name)}", reason)

    return contents.kept_members(tar, parse_ignore(options.ignore), leave_out)


def member_rejects(label: str, groups: Grouped, tar: TarScanner) -> list[Reject]:
    """Return the members of a tar that are in no sample or cannot be read, as rejects."""
    rejects = [Reject(f"{label}:{name}", why, "DecodeError") for name, why in groups.left_out]
    return rejects + [Reject(f"{label}:{name}", why, "MissingMember") for name, why in tar.unread]


def sample_of_members(
    source: str, members: Sequence[tuple[contents.Content, Blob]], options: ReadOptions
) -> RawSample | Reject:
    """Return the sample of members given as (content, bytes), or why it is rejected.

    Images that are numbered alike, such as `image_0.jpg` and `image_1.jpg`, come in the order of
    their numbers, others in that of the members. Of several texts such as `txt` the first counts;
    without one, those with names of their own, see `find_texts`. Of several JSON members the first
    counts, and one such as `json` before one such as `meta.json`. The others are kept as they are,
    and noted. Without an image, a medium that no loader reads makes a reject. Videos, if they are
    wanted, follow the images.
    """
    notes = options.notes
    clips = [each for each in members if options.videos and each[0].medium == "a video"]
    members = [member for member in members if member not in clips]
    is_image = [content.kind == "image" or content.converted for content, _ in members]
    images = list(compress(members, is_image))
    others = [member for member, found in zip(members, is_image, strict=True) if not found]
    if not (images or clips) and (reason := contents.why_unread(content for content, _ in others)):
        return Reject(source, reason, "DecodeError")
    caption: Blob | NamedTexts | None = None
    texts = find_texts([content.ext for content, _ in others])
    if texts.plain is not None:
        caption = others.pop(texts.plain)[1]
    elif texts.named:
        named = tuple((others[index][0].ext, others[index][1]) for index in texts.named)
        caption = NamedTexts(named, texts.unclear)
        others = [member for index, member in enumerate(others) if index not in texts.named]
    record = _take_json(others)
    for content, _ in others:
        is_text = content.kind or content.ext.lower().endswith(".json")
        what = contents.FURTHER_TEXT if is_text else content.medium
        notes.members.keep(content.ext, what, f"{source}.{content.ext}")
    exts = [content.ext for content, _ in images]
    for ext in contents.companions(exts):
        notes.members.accompany(ext, source)
    in_order = (images[number] for number in contents.image_order(exts))
    kept = tuple((content.ext, blob) for content, blob in others)
    pictures: list[Picture] = [
        RawImage(blob, content.ext.rpartition(".")[0]) for content, blob in in_order
    ]
    pictures += [RawVideo((blob,), blob.label) for _, blob in clips]
    return RawSample(source, tuple(pictures), caption, record, kept)


def with_unread_fields(inputs: Iterable[RawInput], notes: Notes) -> Iterator[RawInput]:
    """Yield the inputs, and count the fields of records whose bytes are no image, such as sound."""
    for sample in inputs:
        for ext, blob in sample.others if isinstance(sample, RawSample) else ():
            if isinstance(blob, InlineBlob) and not stored_format(start := blob.data[:START]):
                notes.members.keep(ext, unread_medium(start, blob.name), sample.source)
        yield sample


def settle(
    texts: NamedTexts, record: Any, map: str | None
) -> tuple[Blob | InlineBlob | None, Any, tuple[tuple[str, Blob | InlineBlob], ...]]:
    """Return the caption and the record of a sample with such texts, and texts that are neither.

    A question and its answer become the turns of the record, which keeps its other fields. `map` is
    what `--map` makes of the JSON, which then is the text. SampleError if the texts cannot be read,
    or what they are cannot be told.
    """
    if map is not None or not named_texts_count(len(texts.members), record):
        return None, record, texts.members
    if texts.unclear:
        raise DecodeError(texts.unclear)
    if len(texts.members) == 1:
        return texts.members[0][1], record, ()
    if not isinstance(record, Mapping | None):
        raise DecodeError("its JSON is no object, which a question and its answer could be part of")
    turns = [
        {"role": role, "content": _read_turn(ext, blob)}
        for role, (ext, blob) in zip(("user", "assistant"), texts.members, strict=True)
    ]
    return None, {**(record or {}), "messages": turns}, ()


def _read_turn(ext: str, blob: Blob | InlineBlob) -> str:
    text = parse_text(blob.read(), blob.label).strip()
    if not text:
        raise MissingMember(f"`{ext}`, one of its two turns, is empty", member=blob.label)
    return text


def _take_json(members: list[tuple[contents.Content, Blob]]) -> Blob | None:
    """Take the first JSON member out of a list, preferably one without a prefix."""
    found = [member for member in members if member[0].ext.lower().rpartition(".")[2] == "json"]
    if not found:
        return None
    chosen = min(found, key=lambda member: "." in member[0].ext)
    members.remove(chosen)
    return chosen[1]
