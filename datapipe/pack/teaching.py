"""Lessons of a pack for a model: counts over all samples, and the first of them written out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from datapipe.pack.input.members import settle
from datapipe.pack.input.raw_sample import (
    Blob,
    InlineBlob,
    NamedTexts,
    RawSample,
    RawVideo,
    has_video,
)
from datapipe.pack.input.texts import read_caption
from datapipe.pack.records.fields.field_map import apply_map
from datapipe.pack.records.images.fields import is_image
from datapipe.pack.records.videos import in_order
from datapipe.text.conversation import TURN_FIELDS, known_role, raw_turns
from datapipe.text.conversation import read_turns as turns_of
from datapipe.text.image_marks import IMAGE_PLACE, mark_places
from datapipe.text.messages import (
    Piece,
    RenderedTurn,
    SampleText,
    as_text,
    is_pair,
    read_pair_turns,
    read_turns,
)
from datapipe.text.preference import ANSWERS
from datapipe.text.sample_text import as_record, parse_json, raw_text
from datapipe.text.videos import VIDEO_PLACE, Video, with_frames

_RARE = 0.01  # share of samples up to which a report does not warn
_FIELDS = 12
_DEEP = 4
_MOST_IMAGES = 8  # more images a sample are counted together
_WIDTH = 200  # characters of a turn that are shown
# Markup of captions, which a model would learn to write. Flickr30k Entities marks phrases as
# `[/EN#1/people Two men]`; CC12M has `<PERSON>` for names; caption models trained on padded texts
# leave their tokens.
_MARKUP = re.compile(
    r"(?P<phrases>\[/EN#\d)"
    r"|(?P<names><PERSON>)"
    r"|(?P<tokens></?s>|<(?:unk|pad|bos|eos|sos|start|end)>|<\|[a-z_]+\|>)"
    r"|(?P<html></?(?:a|abbr|b|big|br|center|div|em|font|h[1-6]|hr|i|li|ol|p|small|span|strong|sub"
    r"|sup|table|td|th|tr|u|ul)(?:\s[^<>]*)?/?>|&(?:amp|lt|gt|quot|apos|nbsp|\#\d+|\#x[0-9a-f]+);)",
    re.IGNORECASE,
)
_MARKUP_NAMES = {
    "phrases": "marks of phrases (`[/EN#...]`, as Flickr30k Entities has them)",
    "names": "`<PERSON>` for names, as CC12M has it,",
    "tokens": "special tokens, such as `<s>`,",
    "html": "HTML, such as `<br>` or `&amp;`,",
}


class SampleLesson(NamedTuple):
    """Lesson of a sample, in numbers."""

    images: int  # how many it has
    text: bool  # whether it has any
    labels: int  # how many of its turns are learnt
    roles: str = ""  # the first letter of each turn's role, such as "sua"; "" of a caption
    # Fields with text in them, of a sample that has images and no text
    unread: tuple[str, ...] = ()
    # Name of a text that is not learnt because the sample has another; "" without any
    beside: str = ""
    markup: str = ""  # markup in its caption, by a key of `_MARKUP_NAMES`; "" without any


def look(caption: str | None, record: Any, images: int) -> SampleLesson:
    """Return what a sample teaches, read as a loader reads it; DecodeError if it is refused."""
    if caption is not None and "<" not in caption and "[IMG]" not in caption:
        if caption.strip():  # most samples there are; what follows comes to the same
            return SampleLesson(images, True, 1, markup=_markup(caption))
        return SampleLesson(images, False, 0, "", _texts_in(record))
    sample = SampleText(caption, record, images)
    if is_pair(sample):
        chosen, rejected = read_pair_turns(sample, system=None, newline=False)
        turns = [*chosen, *(turn for turn in rejected if turn.trained)]
        roles = "".join(turn.role[0] for turn in turns)
        return SampleLesson(images, True, sum(turn.trained for turn in turns), roles)
    turns = read_turns(sample, system=None, newline=False)
    text = any(as_text(turn.pieces).strip() for turn in turns)
    labels = sum(turn.trained for turn in turns)
    spoken = caption is None and isinstance(record, Mapping) and raw_turns(record) is not None
    roles = "".join(turn.role[0] for turn in turns) if spoken else ""
    unread = () if text else _texts_in(record)
    beside = _text_beside(record) if caption is None and text else ""
    markup = "" if roles else _markup(raw_text(caption, record))
    return SampleLesson(images, text, labels, roles, unread, beside, markup)


def _markup(caption: str) -> str:
    if not any(sign in caption for sign in "<&["):
        return ""
    found = _MARKUP.search(caption)
    return (found.lastgroup or "") if found else ""


def _text_beside(record: Any) -> str:
    """Return a name for the texts of a record that are not learnt; "" if there are none."""
    if not isinstance(record, Mapping):
        return ""
    if len(record.keys() & {*TURN_FIELDS}) > 1:
        held = {name: turns for name in TURN_FIELDS if (turns := turns_of(record.get(name)))}
        said = [
            [(known_role(t.role), mark_places(t.text).split()) for t in turns]
            for turns in held.values()
        ]
        if any(turns != said[0] for turns in said):
            return f"a second conversation (of {' and '.join(f'`{name}`' for name in held)})"
    captions = record.get("captions")
    if not isinstance(captions, list) or len(set(map(str, captions))) < 2:
        return ""
    learnt = raw_text(None, record) == captions[0]
    return "further captions in `captions` behind the first" if learnt else ""


@dataclass(kw_only=True)
class Teaching:
    """Lessons of the samples of a pack, added up."""

    samples: int = 0  # how many there are
    with_text: int = 0  # samples with text
    with_labels: int = 0  # samples with at least one learnt token
    text_only: int = 0  # samples with text and without images
    without_text: int = 0  # samples with images and no text: nothing to learn
    turns: Counter[str] = field(default_factory=Counter)  # how many turns each role has
    # How many samples have so many images; 8 stands for all from 8 on
    images: Counter[int] = field(default_factory=Counter)
    # Fields that hold text, by how many samples without text have them
    unread: Counter[str] = field(default_factory=Counter)
    # Number of samples by the name of a text that is not learnt because of another
    beside: Counter[str] = field(default_factory=Counter)
    # Number of samples by the markup in their captions
    markup: Counter[str] = field(default_factory=Counter)

    def add(self, seen: SampleLesson, times: int = 1) -> None:
        """Count samples that are alike."""
        self.samples += times
        self.with_text += times * seen.text
        self.with_labels += times * bool(seen.labels)
        self.text_only += times * (seen.text and not seen.images)
        self.without_text += times * (not seen.text and seen.images > 0)
        self.images[min(seen.images, _MOST_IMAGES)] += times
        for letter in seen.roles:
            self.turns[_ROLES[letter]] += times
        for name in seen.unread:
            self.unread[name] += times
        if seen.beside:
            self.beside[seen.beside] += times
        if seen.markup:
            self.markup[seen.markup] += times

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON has them."""
        counts = vars(self) | {"images": {str(n): c for n, c in sorted(self.images.items())}}
        return {name: dict(v) if isinstance(v, dict) else v for name, v in counts.items()}

    def rows(self) -> dict[str, str]:
        """Return lines for a report, by name."""
        rows = {
            "with text": f"{self.with_text:,}",
            "with labels": f"{self.with_labels:,}",
            "text only": f"{self.text_only:,}",
            "images without text": f"{self.without_text:,}",
        }
        if self.turns:
            rows["turns"] = ", ".join(f"{role} {self.turns[role]:,}" for role in self.turns)
        rows["images a sample"] = ", ".join(
            f"{number}{'+' if number == _MOST_IMAGES else ''}: {count:,}"
            for number, count in sorted(self.images.items())
        )
        return rows

    def warnings(self) -> list[str]:
        """Return what a person should look at before training."""
        said = [
            f"{count:,} of {self.samples:,} samples have {text}, which is not learnt"
            for text, count in self.beside.most_common()
        ]
        said += [
            f"{count:,} of {self.samples:,} captions have {_MARKUP_NAMES[kind]} which the model "
            "learns to write; clean the texts before packing if it should not"
            for kind, count in self.markup.most_common()
            if count > _RARE * self.samples
        ]
        if self.without_text > _RARE * self.samples:
            text = (
                f"{self.without_text:,} of {self.samples:,} samples "
                f"({self.without_text / self.samples:.0%}) have images and no text, so nothing is "
                "learnt from them"
            )
            if names := [name for name, _ in self.unread.most_common(_FIELDS)]:
                listed = ", ".join(f"`{name}`" for name in names)
                text += f"; fields with text that nothing reads: {listed}; take one with --map "
                text += f"'caption={names[0]}'"
            said.append(text)
        if self.with_text - self.with_labels > _RARE * self.samples:
            said.append(
                f"{self.with_text - self.with_labels:,} of {self.samples:,} samples have text, but "
                "nothing of it is learnt: no turn is the assistant's, or it is marked so"
            )
        return said


_ROLES = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}


@dataclass(frozen=True, kw_only=True)
class WrittenSample:
    """Sample as training will see it."""

    source: str  # where it came from
    images: int  # how many it has
    # (role, text, learnt) in order, as a chat template gets them: `<image>` at the place of each
    # image, `<video: 8 frames>` at that of a video (`<video>` before it was read), and a newline
    # after each that is put before a text that marks none
    turns: tuple[tuple[str, str, bool], ...]

    def lines(self) -> list[str]:
        """Return the sample written out; `*` stands before what the model learns to write."""
        images = f"{self.images or 'no'} image{'s' if self.images > 1 else ''}"
        lines = [f"{self.source}: {images}"]
        for role, text, learnt in self.turns:
            text = text.replace("\n", " / ")
            if len(text) > _WIDTH:
                text = f"{text[:_WIDTH]}... ({len(text):,} characters)"
            lines.append(f"  {'*' if learnt else ' '} {role:<10} {text or '(empty)'}")
        if not any(learnt for _, _, learnt in self.turns):
            lines.append("    (nothing is learnt from this sample)")
        return lines


def show(
    sample: RawSample,
    map: str | None = None,
    *,
    images: int | None = None,
    videos: Sequence[Video] = (),
) -> WrittenSample:
    """Return a sample as training will see it; SampleError if it cannot be read or makes no sense.

    `map` is what `--map` makes of the JSON beside its images; None where the reader has done that.
    `images` is how many it has in the end, with all pages; None for as many as there are files.
    `videos` are those that some of them are frames of; none where they were not read yet.
    """
    caption: Any = sample.caption
    record = _record_of(sample)
    if isinstance(caption, NamedTexts):
        caption, record, _ = settle(caption, record, map)
    if caption is not None:
        caption, _ = read_caption(caption)
    if map is not None:
        record, caption = apply_map(record, map, sample.source)
    unread: list[int] = []
    if videos or has_video(sample):
        marked, pictures = in_order(record, sample.images)
        if not videos:
            unread = [at for at, picture in enumerate(pictures) if isinstance(picture, RawVideo)]
            videos = [Video("", at, (0.0,), 0.0, 0.0) for at in unread]
        record = with_frames(marked, videos)
    images = len(sample.images) if images is None else images
    # As for a template that takes texts, such as "chatml" and "llava".
    turns = _shown_turns(SampleText(caption, record, images))
    written = [
        (turn.role, "".join(_shown(piece) for piece in turn.pieces), turn.trained) for turn in turns
    ]
    return WrittenSample(source=sample.source, images=images - len(unread), turns=tuple(written))


def _shown(piece: Piece) -> str:
    if isinstance(piece, Video):
        return f"<video: {len(piece.times)} frames>" if piece.fps else VIDEO_PLACE
    return IMAGE_PLACE if piece is None else piece


def _shown_turns(sample: SampleText) -> list[RenderedTurn]:
    """Return the turns of a sample; of a pair its answers have the roles chosen and rejected."""
    if not is_pair(sample):
        return read_turns(sample, system=None, newline=True)
    both = read_pair_turns(sample, system=None, newline=True)
    asked = [turn for turn in both[0] if not turn.trained]
    answers = zip(ANSWERS, both, strict=True)
    return asked + [t._replace(role=name) for name, turns in answers for t in turns if t.trained]


def fields_with_text(sample: RawSample) -> dict[str, Any]:
    """Return the fields of a sample's record that hold words; SampleError if it cannot be read."""
    record = _record_of(sample)
    return {name: record[name] for name in _texts_in(record)}


def _record_of(sample: RawSample) -> Any:
    if isinstance(sample.record, Blob | InlineBlob):
        return as_record(parse_json(sample.record.read()))
    return sample.record


def _texts_in(record: Any) -> tuple[str, ...]:
    if not isinstance(record, Mapping):
        return ()
    return tuple(name for name, value in record.items() if _has_words(value, _DEEP))[:_FIELDS]


def _has_words(value: Any, deep: int) -> bool:
    if isinstance(value, str):
        stem, dot, ext = value.rpartition(".")
        is_path = dot and stem and len(value.split()) == 1 and ext.isalnum()
        is_path = is_path or value.partition(":")[0] == "image"  # `image:0` stands for bytes
        is_said = any(map(str.isalpha, value)) and "://" not in value
        return is_said and not is_path and not is_image(value)
    if not deep or not isinstance(value, list | Mapping):
        return False
    items = value[:_FIELDS] if isinstance(value, list) else value.values()
    return any(_has_words(item, deep - 1) for item in items)
