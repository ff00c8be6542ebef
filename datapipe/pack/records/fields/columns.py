"""Meaning of the columns of a table: images, and the text that is learnt.

A name is a caption only where no other column answers it; a pair of a question and its answer
becomes a conversation. What could be meant in several ways is refused, with the columns' names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.records.fields import known_texts
from datapipe.pack.records.fields.field_map import FieldMap, has_text
from datapipe.pack.records.fields.field_path import (
    FieldSource,
    field_source,
    parse_list,
    parse_source,
)
from datapipe.pack.records.fields.refusals import (
    TableColumns,
    label_columns,
    listed,
    longest,
    prose,
)
from datapipe.pack.records.images.fields import (
    Columns,
    are_numbered,
    columns_of_record,
    elsewhere,
    has_image_extension,
    image_columns,
    is_image,
)
from datapipe.pack.records.images.roots import Images
from datapipe.pack.records.images.templates import named_by
from datapipe.text.conversation import read_turns
from datapipe.text.preference import ANSWERS

_CAPTION = frozenset({"caption", "captions", "alt_text", "txt", "sentences", "comment"})
# Captions only where nothing beside them could be their answer.
_WEAK_CAPTION = frozenset({"text", "prompt", "description", "sentence"})
# OpenCLIP's names of the columns of a CSV, unless `--csv-img-key` and `--csv-caption-key` differ.
_FILEPATH, _TITLE = "filepath", "title"
_USER = (
    *("question", "query", "instruction", "prompt", "prefix", "input", "inputs", "problem"),
    *("questions", "question_string", "question_text"),
    *("user", "human", "request", "q"),
)
# Columns of one tuple hold the same answer in several forms; the first that is there is taken.
_ASSISTANT = (
    ("multiple_choice_answer", "answer", "answers", "direct_answers", "gt_answer"),
    ("response",),
    ("output", "outputs"),
    *((name,) for name in ("completion", "suffix", "solution", "reply", "assistant", "gpt")),
    *((name,) for name in ("target", "a")),
)
_LISTS = ("answers", "direct_answers", "questions")  # which a CSV writes as text
_LABELS = ("label", "labels")  # answers beside a question (ChartQA), else classes
_SYSTEM = ("system", "system_prompt")  # of the record's own; a loader reads them itself
_VERDICT = frozenset(
    {"label", "is_correct", "correct", "is_true", "truth", "relevant", "is_relevant", "valid"}
)
_ANSWERING = re.compile(r"(answer|response|output|completion|reply|winner)s?[_-]")
_SEVERAL = frozenset({"completions", "responses", "replies", "generations", "candidates"})
# Not `Instructions`, as recipes have them.
_ASKING = re.compile(r"question|query|prompt|request|problem|instruction(?!s)", re.IGNORECASE)
_PROBES = 5
_MOST_ALONE = 3  # columns of images in a table that has no others


def infer(columns: Columns, raw: Path, options: ReadOptions, files: Images) -> FieldMap:
    """Return the map of a table whose columns are known, and note what was decided.

    `columns` are those of the first records. `raw` is what the table is called in messages. Of
    `options`, those that name columns and the notes are used. `files` says where the images are
    that columns name. PackError if no column or several could be meant.
    """
    image, text, notes = options.image_column, options.text_column, options.notes
    images = image_sources(columns, raw, options, files)
    held = {name for source in images for name in source.fields}
    joined = options.join is not None
    named = list(map(str, images))
    table = TableColumns(raw=raw, columns=columns, images=named, held=held, joined=joined)
    if text is not None:
        caption = _named("--text-column", text, columns, raw)
        found = FieldMap(images=images, caption=caption[0] if caption else None)
    else:
        layouts = (layout(table) for layout in (*_TURNS, _caption))
        known = next(filter(None, layouts), FieldMap())
        found = replace(known, images=images, recognised=image is None)
    in_turns = False
    with suppress(DecodeError, MissingMember):  # the record will be rejected
        in_turns = found.has_images_in_turns({name: v[0] for name, v in columns.items() if v})
    if image is None and text is None and not (images or in_turns):
        table.refuse_named_images(has_turns=found.has_turns)
    if not found.sources:
        raise PackError(
            f"{raw}: no column is known to hold images or text (all columns: {listed(columns)}); "
            "name them with --image-column and --text-column, or with --map "
            "'image=COLUMN,user=COLUMN,assistant=COLUMN'"
        )
    if text is None and images and not (found.has_turns or found.caption):
        if labels := label_columns({n: v for n, v in columns.items() if n not in held}):
            notes.decide(f"no column is taken as text; --map 'caption={labels[0]}' takes labels")
    elif text is None:
        said = replace(found, images=())
        notes.decide(f"text: {said} (recognised by name; --map says otherwise)")
    left = [name for name in prose(columns) if name not in {*found.fields, *held, *_SYSTEM}]
    if left:
        notes.decide(f"columns that are not trained on: {listed(left)}")
    return found


def image_sources(
    columns: Columns, raw: Path, options: ReadOptions, files: Images
) -> tuple[FieldSource, ...]:
    """Return the sources of a table's images, as `infer` takes them; PackError if none is plain."""
    if options.image_column is not None:
        return _named("--image-column", options.image_column, columns, raw)
    names = image_columns(columns, files)
    if not are_numbered(names):
        table = TableColumns(raw=raw, columns=columns, images=names)
        raise table.refusal(
            f"images may be in any of the columns {listed(names)}; name one with --image-column, "
            "or take several in order, and say what the text is, with --map "
            f"'{table.map(*_example_text(columns, names))}'"
        )
    if len(names) == 1 and (template := _without_extension(names[0], columns, raw)):
        options.notes.decide(f"images are named without their extension: taken from {template}")
        return (parse_source(template),)
    return tuple(map(field_source, names))


def _example_text(columns: Columns, images: Sequence[str]) -> list[str]:
    """Return the part of a map that takes the text of a table, or a text that it may have."""
    table = TableColumns(raw=Path(), columns=columns, held=images)
    with suppress(PackError):
        known = next(filter(None, (layout(table) for layout in (*_TURNS, _caption))), FieldMap())
        if known.sources and all(source.kind == "field" for source in known.sources):
            return [str(known)]
    return [f"caption={name}" for name in prose(columns) if name not in images][:1]


def is_table(record: Mapping[str, Any], *, text_is_enough: bool) -> bool:
    """Return whether a record has columns that `infer` makes something of, be it a refusal."""
    if record.keys() <= {"source", "reason", "error", "file"}:  # rejects of a pack of ours
        return False
    if any(map(has_image_extension, record)):  # there is no header, this is the first row
        return False
    if len(record) > _MOST_ALONE and all(map(is_image, record.values())):  # images by their ids
        return False
    columns = columns_of_record(record)
    table = TableColumns(raw=Path(), columns=columns)
    try:
        if image_columns(columns) or any(layout(table) for layout in _TURNS):
            return True
    except PackError:
        return True
    if table.named(*_CAPTION, *_WEAK_CAPTION) and elsewhere(columns):
        return True
    known = {*_CAPTION, *_WEAK_CAPTION, *_USER, *(n for family in _ASSISTANT for n in family)}
    texts = (values for name, values in columns.items() if name.lower() in known)
    return text_is_enough and any(map(_is_text, texts))


def _without_extension(name: str, columns: Columns, raw: Path) -> str | None:
    """Return the template of the files that a column names by stems; None if it names them."""
    values = columns[name]
    if not values or any(not isinstance(value, str) or "." in value[-6:] for value in values):
        return None
    return named_by(raw, {name: values})


def _named(option: str, text: str | None, columns: Columns, raw: Path) -> tuple[FieldSource, ...]:
    """Return the source that an option names, none where it is empty."""
    if not text:
        return ()
    source = field_source(text) if text in columns else parse_source(text)
    if not any(name in columns for name in source.fields or columns):
        raise PackError(f"{option} {text!r}: {raw} has no such column; it has {listed(columns)}")
    return (source,)


def _conversation(table: TableColumns) -> FieldMap | None:
    chats = [
        name
        for name, values in table.columns.items()
        if values
        and name not in table.held
        and name.lower() not in ("history", *ANSWERS)
        and all(read_turns(parse_list(value)) for value in values[:_PROBES])
    ]
    if [name.lower() for name in chats] == ["prompt", "completion"]:  # of TRL
        return FieldMap(messages=known_texts.joined_turns(*chats))
    if len(chats) > 1:
        raise table.ambiguous("the conversation", chats, f"messages={chats[0]}")
    if chats:
        table.refuse_preferences(f"messages={chats[0]}")
    return FieldMap(messages=field_source(chats[0])) if chats else None


def _lists_of_turns(table: TableColumns) -> FieldMap | None:
    return None if table.named(*_CAPTION, *_WEAK_CAPTION) else known_texts.turns_in_lists(table)


def _questions(table: TableColumns) -> FieldMap | None:
    asked = table.named(*_USER)
    table.refuse_preferences(f"user={asked[0]}" if asked else "")
    if choices := known_texts.choice_sources(table.names):
        return FieldMap(turns=choices)
    answered = _answers(table) or _labels(table)
    return _pair(table, asked, answered) if asked and answered else None


_TURNS = (_conversation, known_texts.donut_text, _lists_of_turns, _questions)
"""Layouts of turns, of which the first that fits counts; a table of none may have captions."""


def _answers(table: TableColumns) -> list[str]:
    return [found[0] for family in _ASSISTANT if (found := table.named(*family))]


def _labels(table: TableColumns) -> list[str]:
    # Among numbers of classes a word may be one more class, so all have to be texts.
    return [n for n in table.named(*_LABELS) if all(_is_text([v]) for v in table.columns[n])]


def _caption(table: TableColumns) -> FieldMap | None:
    columns, names = table.columns, table.names
    answered, labels = _answers(table), _labels(table)
    captions = [
        column
        for name, column in names.items()
        if name in _CAPTION | _WEAK_CAPTION and _is_text(columns[column])
    ]
    others = [name for name in prose(columns) if name not in {*captions, *table.held}]
    if len(captions) == 1 and labels and captions[0].lower() in _WEAK_CAPTION:
        if all(str(value).rstrip().endswith("?") for value in columns[captions[0]]):  # POPE
            return _pair(table, captions, labels[:1])
        others = [*labels, *others]  # a text and its label: which one is learnt?
    for name in [*captions, *others]:
        if inside := _json_object(columns[name]):
            raise table.refusal(
                f"the column {name!r} holds JSON with {listed(inside)}, which a model would learn "
                "to write; put the fields that you want into separate columns, or take the "
                f"JSON as it is with --text-column {name!r}"
            )
    answers = [
        *answered,
        *(c for name, c in names.items() if _ANSWERING.match(name) or name in _SEVERAL),
    ]
    if answers and captions:  # something answers the caption
        others = sorted({*others, *answers})
    elif len(captions) == 1:
        _check_caption(table, captions[0], others)
        if captions[0].lower() in _CAPTION:
            others = []
    if len(captions) == 1 and not others:
        return FieldMap(caption=field_source(captions[0]))
    texts = [*captions, *others]
    title = names.get(_TITLE) if table.images == [_FILEPATH] else None
    if title and not {*texts, *labels, *answers} - {title} and _is_text(columns[title]):
        return FieldMap(caption=field_source(title))
    if not texts:
        return None
    asks = [name for name in texts if _ASKING.search(name)]
    if answers and captions:
        example = f"user={captions[0]},assistant={answers[0]}"
    elif asks:
        example = f"user={asks[0]},assistant={next((n for n in texts if n not in asks), 'COLUMN')}"
    else:
        example = f"caption={longest(texts, columns)}"
    raise table.ambiguous("the text", texts, example)


def _check_caption(table: TableColumns, caption: str, others: Sequence[str]) -> None:
    """Refuse a caption that another column may call false, or that is a question."""
    columns = table.columns
    for name, found in columns.items():
        is_verdict = name.lower() in _VERDICT and found and all(value in (0, 1) for value in found)
        # A `label` may be a class too, so it counts where both 0 and 1 were seen.
        if is_verdict and (name.lower() not in _LABELS or 0 in found):
            raise table.refusal(
                f"the column {name!r} is 0 or 1 and may say whether the text in {caption!r} is "
                "true; a model would learn the false ones too. Leave these rows out, or, if it "
                f"means something else, take the text with --text-column {caption!r}"
            )
    values = [value for value in columns[caption] if isinstance(value, str)]
    asked = sum("?" in value for value in values) * 2 > len(values)
    asked = asked or any(name.lower() == "question_id" for name in columns)
    if not others and asked and caption.lower() in _WEAK_CAPTION:
        raise table.refusal(
            f"the column {caption!r} seems to hold questions, and nothing answers them; name the "
            f"answers with --map '{table.map(f'user={caption}', 'assistant=COLUMN')}', or take it "
            f"as a caption anyway with --text-column {caption!r}"
        )


def _pair(table: TableColumns, asked: Sequence[str], answered: Sequence[str]) -> FieldMap:
    """Return a question and its answer, after the turns before it where there are some."""
    names = table.names
    question = _listed(asked[0], table.columns)
    more = {name.lower() for name in asked} - {"instruction"}
    if "instruction" in names and more in ({"input"}, {"inputs"}):  # of Alpaca; of M3IT
        question = known_texts.instruction_and_input(names["instruction"], names[more.pop()])
        asked = asked[:1]
    if len(asked) > 1 or len(answered) > 1:
        example = f"user={asked[0]},assistant={answered[0]}"
        raise table.ambiguous("the text", [*asked, *answered], example)
    if any(isinstance(value, bool) for value in table.columns[answered[0]]):
        raise PackError(
            f"{table.raw}: the answers in {answered[0]!r} are true and false, not text; write them "
            f"as words, or name another column with --map 'user={asked[0]},assistant=COLUMN'"
        )
    history = field_source(names["history"]) if "history" in names else None
    turns = (("user", question), ("assistant", _listed(answered[0], table.columns)))
    return FieldMap(messages=history, turns=turns)


def _listed(name: str, columns: Columns) -> FieldSource:
    """Return the source of a column; of lists of texts that its cells spell, as in CSV, these."""
    lists = (parse_list(value) for value in columns[name] if isinstance(value, str))
    if name.lower() not in _LISTS or not any(isinstance(v, list) and _is_text([v]) for v in lists):
        return field_source(name)

    def texts(record: Mapping[str, Any]) -> Any:
        held = parse_list(record.get(name))
        numbers = isinstance(held, list) and any(isinstance(v, int | float) for v in held)
        return held if isinstance(held, list) and not numbers else record.get(name)

    return FieldSource(name, (name,), texts)


def _json_object(values: Sequence[Any]) -> dict[str, Any] | None:
    """Return the first of some values that are all JSON objects written as texts; else None."""
    found = [parse_list(value) for value in values[:_PROBES] if isinstance(value, str)]
    are_objects = len(found) == len(values[:_PROBES]) and all(isinstance(v, dict) for v in found)
    return found[0] if found and are_objects else None


def _is_text(values: Sequence[Any]) -> bool:
    """Return whether some of the values are texts or objects that have one, or lists of these."""
    return not values or any(
        all(isinstance(item, str | Mapping) for item in value)
        if isinstance(value, list)
        else isinstance(value, str) or has_text(value)
        for value in values
    )
