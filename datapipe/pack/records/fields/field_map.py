"""Fields of a record that are its images and its turns: by `--map`, or by their names.

`apply_map` uses `--map` on samples with images: on the fields of their JSON, and parts of their
path.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from datapipe.errors import DecodeError, MissingMember, PackError
from datapipe.pack.records.fields.field_path import (
    FieldSource,
    field_source,
    parse_list,
    parse_source,
)
from datapipe.pack.records.fields.turns import has_images, unpack_turns
from datapipe.pack.records.images.fields import image_list, with_names
from datapipe.pack.records.images.roots import Images
from datapipe.text.conversation import read_turns
from datapipe.text.videos import VIDEO_FIELD

_TURNS = ("user", "assistant", "system", "tool")
_TARGETS = ("image", "video", *_TURNS, "messages", "caption")
_ALIASES = {"images": "image", "videos": "video", "text": "caption", "conversations": "messages"}
_ITEM = re.compile(r"""((?:[^,'"{\[]|'[^']*'|"[^"]*"|\{[^}]*\}|\[[^\]]*\]|['"{\[])+)(?:,|$)""")
# How pandas, Python and spreadsheets spell that there is none; no caption says this and no more,
# while an answer may be "None".
_NAN = frozenset({"nan", "NaN", "<NA>"})
_NOTHING = frozenset({"None", "null", "NULL", "N/A", "n/a", "#N/A"})
_WORDS = ("value", "content", "text", "raw", "answer", "caption")  # of an object that is a text


@dataclass(frozen=True, kw_only=True)
class FieldMap:
    """Sources of the images and of the text of a record."""

    images: tuple[FieldSource, ...] = ()  # sources of images, in order
    videos: tuple[FieldSource, ...] = ()  # sources of videos, in order
    turns: tuple[tuple[str, FieldSource], ...] = ()  # (role, source), in order
    messages: FieldSource | None = None  # source of turns that stand before `turns`
    caption: FieldSource | None = None  # source of a caption, or of a list of captions
    imageless: bool = False  # the user wants no images, even if fields are known to hold some
    # `images` were found by name, so images in the turns themselves go before them
    recognised: bool = False
    # Names of classes that the text has in place of their numbers, by column
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def items(self) -> list[tuple[str, FieldSource]]:
        """Targets of `--map` with their sources."""
        singles = [("messages", self.messages), *self.turns, ("caption", self.caption)]
        return [
            *(("image", source) for source in self.images),
            *(("video", source) for source in self.videos),
            *((target, source) for target, source in singles if source is not None),
        ]

    @property
    def sources(self) -> tuple[FieldSource, ...]:
        return tuple(source for _, source in self.items)

    @property
    def has_turns(self) -> bool:
        return bool(self.turns or self.messages)

    @property
    def fields(self) -> frozenset[str]:
        """Names of the record's own fields that it reads."""
        return frozenset(name for source in self.sources for name in source.fields)

    def __str__(self) -> str:
        """Return the map as `--map` takes it."""
        items = [f"{target}={source}" for target, source in self.items]
        return ",".join(["image=", *items] if self.imageless else items)

    def with_image(self, field: str) -> str:
        """Return the map that takes the images of another field, too."""
        return str(replace(self, images=(*self.images, field_source(field)), imageless=False))

    def read(self, record: Mapping[str, Any], files: Images | None = None) -> Mapped:
        """Return images, captions and turns of a record, whose images are in `files`."""
        images: list[Any] = []
        if self.recognised and self.images and self.has_images_in_turns(record):
            return replace(self, images=()).read(record)
        for source in self.images:
            found = source.get(record)
            if (found is None or found == "") and len(self.images) == 1:
                raise MissingMember(f"column `{source}` holds no image")
            images += image_list(found, files)
        kept = with_names(record, images)
        named = {n: _class_name(record[n], c, n) for n, c in self.classes.items() if n in record}
        said = {**record, **named} if named else record
        if (captions := self.caption_of(said)) is not None:
            return Mapped(images, kept, captions)
        if not self.has_turns:
            return Mapped(images, kept)
        unpacked: dict[str, Any] = {"messages": self.messages_of(said)}
        if images:
            unpacked["images"] = images
        if VIDEO_FIELD in record:
            unpacked[VIDEO_FIELD] = record[VIDEO_FIELD]
        found, turns = unpack_turns(unpacked, "messages")
        kept = {**kept, "messages": turns["messages"]}
        return Mapped(found, kept, in_turns=bool(found and not images))

    def with_videos(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the record with the videos of the map in its field `videos`."""
        if not self.videos:
            return record
        videos = [video for source in self.videos for video in image_list(source.get(record))]
        if not videos:
            raise MissingMember(f"column `{self.videos[0]}` holds no video")
        moved = {source.label for source in self.videos}
        return {**{n: held for n, held in record.items() if n not in moved}, "videos": videos}

    def has_images_in_turns(self, record: Mapping[str, Any]) -> bool:
        """Return whether the conversation of a record has images itself, in parts or in texts."""
        return self.messages is not None and has_images(parse_list(self.messages.get(record)))

    def caption_of(self, record: Mapping[str, Any]) -> list[str] | None:
        """Return the captions of a record; None if the map has none."""
        return None if self.caption is None else _captions(self.caption.get(record), self.caption)

    def messages_of(self, record: Mapping[str, Any]) -> list[Any]:
        """Return the turns of a record."""
        turns: list[Any] = []
        if self.messages is not None:
            turns += as_turns(self.messages.get(record), self.messages)
        given = [(role, source.get(record), source) for role, source in self.turns]
        _refuse_gaps([(value, source) for role, value, source in given if role != "system"])
        said = [(role, _texts(value, source), source) for role, value, source in given]
        rounds = {len(texts) for role, texts, _ in said if role in ("user", "assistant")}
        if rounds == {1} or len(rounds) != 1 or "user" not in dict(self.turns):
            turns += [_turn(*item) for item in said if item[1]]
        else:  # lists of questions and of their answers
            turns += [_turn(*item) for item in said if item[0] == "system"]
            spoken = [(role, texts) for role, texts, _ in said if role in ("user", "assistant")]
            for number in range(rounds.pop()):
                turns += [{"role": role, "content": texts[number]} for role, texts in spoken]
        for role in ("assistant", "user"):
            named = next((source for target, source in self.turns if target == role), None)
            if named and not any(turn["role"] == role for turn in turns if "role" in turn):
                raise MissingMember(f"field `{named}`, the {role}'s turn, is empty")
        return turns


class Mapped(NamedTuple):
    """Images and text of a record, as a map gives them."""

    images: list[Any]  # as the record holds them, in order
    record: Mapping[str, Any]  # with names in the places of images, and the turns as `messages`
    captions: Sequence[str] = ()  # of the images, where the text is a caption
    in_turns: bool = False  # whether the turns hold the images, and not the fields of the map


def parse_map(text: str) -> FieldMap:
    """Return the map that a user wrote, `target=source` with commas between.

    `image=` with nothing behind it is a map without images.

    Raises:
        PackError: a target is not known, or a source makes no sense.

    Examples:
        >>> str(parse_map("user=question,assistant=answers[0].text,image=img_path"))
        'image=img_path,user=question,assistant=answers[0].text'
    """
    found: dict[str, list[FieldSource]] = {target: [] for target in _TARGETS}
    turns: list[tuple[str, FieldSource]] = []
    imageless = False
    for item in filter(None, (match[1].strip() for match in _ITEM.finditer(text))):
        name, equals, source = item.partition("=")
        target = _ALIASES.get(name.strip(), name.strip())
        if not equals or target not in _TARGETS:
            raise PackError(
                f"--map {item!r}: write TARGET=FIELD with a target of {', '.join(_TARGETS)}, such "
                "as 'user=question,assistant=answer,image=img_path'"
            )
        if target == "image" and not source.strip():
            imageless = True
            continue
        found[target].append(parse_source(source))
        if target in _TURNS:
            turns.append((target, found[target][-1]))
        elif target in ("messages", "caption") and len(found[target]) > 1:
            raise PackError(f"--map names {target} twice; only images, videos and turns may be so")
    if found["caption"] and (turns or found["messages"]):
        raise PackError("--map has a caption and turns; the text of a sample is one of them")
    if found["image"] and imageless:
        raise PackError(f"--map {text!r} names images and says by `image=` that there are none")
    if not any(found.values()):
        raise PackError(f"--map {text!r} names no field; for example 'image=img_path,caption=alt'")
    return FieldMap(
        images=tuple(found["image"]),
        videos=tuple(found["video"]),
        turns=tuple(turns),
        messages=next(iter(found["messages"]), None),
        caption=next(iter(found["caption"]), None),
        imageless=imageless,
    )


_parsed = lru_cache(parse_map)


def apply_map(record: Any, map: str, source: str) -> tuple[Any, str | None]:
    """Return the record of a sample and its caption as `--map` makes them of its JSON.

    The map can name the fields of the JSON, and `folder` and `stem` of the sample's path.
    SampleError if a field is missing, empty, or holds something else.
    """
    fields, held = _parsed(map), fields_of_path(source)
    if isinstance(record, Mapping):
        held |= record
    elif fields.fields - held.keys():
        raise MissingMember("the sample has no JSON object, whose fields --map names")
    if (captions := fields.caption_of(held)) is not None:
        return record, "\n".join(captions) or None
    own = record if isinstance(record, Mapping) else {}
    return {**own, "messages": fields.messages_of(held)}, None


def fields_of_path(source: str) -> dict[str, Any]:
    """Return the folder and the stem of a file below the raw data, or of a member of a tar.

    Examples:
        >>> fields_of_path("train/cat/0.jpg")
        {'folder': 'cat', 'stem': '0'}
        >>> fields_of_path("shards/0.tar:cat/0")
        {'folder': 'cat', 'stem': '0'}
    """
    above, _, name = source.rpartition(".tar:")[2].rpartition("/")
    return {"folder": above.rpartition("/")[2] or None, "stem": name.rpartition(".")[0] or name}


def as_turns(value: Any, source: FieldSource) -> list[Any]:
    """Return the turns of a value: a list of them, their JSON, or pairs of asked and answered."""
    value = parse_list(value)
    if value is None or value == []:
        return []
    if isinstance(value, list) and all(map(_is_pair, value)):  # ms-swift's history
        roles = ("user", "assistant")
        said = [turn for pair in value for turn in zip(roles, pair, strict=True)]
        return [{"role": role, "content": text} for role, text in said]
    if read_turns(value) is None:
        raise DecodeError(f"`{source}` is not a list of turns with a role and a text each")
    return list(value)


def has_text(value: Any) -> bool:
    """Return whether a value is an object that stands for its text, such as `{"raw": "A cat."}`."""
    return isinstance(value, Mapping) and any(isinstance(value.get(n), str) for n in _WORDS)


def is_there(value: Any) -> bool:
    """Return whether a cell is not empty: neither null, blank nor one of the ways to write NaN."""
    if isinstance(value, str):
        return bool(value.strip()) and value.strip() not in _NAN
    return value is not None and value == value


def _is_pair(item: Any) -> bool:
    is_two = isinstance(item, list | tuple) and len(item) == 2
    return is_two and all(isinstance(text, str) for text in item)


def _turn(role: str, texts: Sequence[str], source: FieldSource) -> dict[str, str]:
    if len(texts) == 1:
        return {"role": role, "content": texts[0]}
    if source.is_several:
        return {"role": role, "content": "\n".join(texts)}
    if role == "assistant":  # answers of several people to one question
        return {"role": role, "content": Counter(texts).most_common(1)[0][0]}
    raise DecodeError(f"field `{source}` holds {len(texts)} texts and the others do not")


def _refuse_gaps(given: Sequence[tuple[Any, FieldSource]]) -> None:
    """Refuse lists of questions and answers with a gap in one, behind which pairs would shift."""
    lists = [(v, source) for v, source in given if isinstance(v, list | tuple) and len(v) > 1]
    filled = [[bool(_texts(item, source)) for item in value] for value, source in lists]
    if any(len({*place}) > 1 for place in zip(*filled, strict=False)):
        names = " and ".join(f"`{source}`" for _, source in lists)
        raise DecodeError(f"fields {names} are lists, and at one place only some have a text")


def _texts(value: Any, source: FieldSource) -> list[str]:
    """Return the texts of a value that is one, or a list of some; empty ones are left out."""
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item, source)]
    if has_text(value):
        value = next(value[name] for name in _WORDS if isinstance(value.get(name), str))
    if not is_there(value):
        return []
    if isinstance(value, date | time):  # of Parquet, as are decimals
        return [value.isoformat()]
    if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool):
        return [str(value)]
    raise DecodeError(f"column `{source}` holds a {type(value).__name__}, not text")


def _class_name(value: Any, names: Sequence[str], column: str) -> Any:
    if isinstance(value, list):
        return [name for item in value if (name := _class_name(item, names, column)) is not None]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value < 0:  # of a split without labels
        return None
    if value >= len(names):
        raise DecodeError(f"`{column}` is {value}, and only {len(names)} classes have names")
    return names[value]


def _captions(value: Any, source: FieldSource) -> list[str]:
    if source.is_several and isinstance(value, list):
        return _texts(value, source)
    held = parse_list(value)
    value = held if isinstance(held, list) else value  # maybe a list in a cell of a CSV
    return [text for text in _texts(value, source) if text.strip() not in _NOTHING]
