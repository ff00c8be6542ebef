"""Questions with a choice of answers: ScienceQA, A-OKVQA, AI2D, MMBench, MMMU.

The choices are part of the question, a line each with a letter before it; the answer is the letter
and the text of the right one. `0` or `B` alone would teach a model a number of a list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

from datapipe.errors import DecodeError
from datapipe.pack.records.fieldmap import parse_list
from datapipe.pack.records.fieldpath import Source

_CHOICES = ("choices", "options")
_RIGHT = ("correct_choice_idx", "answer", "answer_idx", "gold_index", "label")
_CONTEXT = "hint"
# A column for each: `A` of MMBench, `Choice A` of PMC-VQA, `option_a`, `choice1`.
_OF_ONE = re.compile(r"(?P<kind>(choice|option|opt)[ _-]?(?=.)|(?=[a-h]))(?P<which>[a-h]|\d)")
_OWN_LETTER = re.compile(r"\s*\(?(?P<letter>[A-Ha-h])\s*[:.)]\s*")


@dataclass(frozen=True)
class _Choice:
    question: str
    choices: tuple[str, ...]
    right: str
    context: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.question, *self.choices, self.right, *([self.context] if self.context else []))

    def texts(self, record: Mapping[str, Any]) -> list[str]:
        values = [record.get(name) for name in self.choices]
        if len(self.choices) == 1:
            held = parse_list(values[0]) if isinstance(values[0], str) else values[0]
            values = held if isinstance(held, list) else []
        texts = [
            str(value) for value in values if value is not None and value == value and value != ""
        ]
        found = [_OWN_LETTER.match(text) for text in texts]
        if texts and [f and f["letter"].upper() for f in found] == [*ascii_uppercase[: len(texts)]]:
            return [text[f.end() :].strip() for text, f in zip(texts, found, strict=True) if f]
        return texts


class ChoiceQuestion(_Choice):
    """The question, with a line for each choice behind it."""

    def get(self, record: Mapping[str, Any]) -> str | None:
        question = record.get(self.question)
        if not isinstance(question, str):
            return None
        context = record.get(self.context) if self.context else None
        lines = [context] if isinstance(context, str) and context.strip() else []
        letters = zip(ascii_uppercase, self.texts(record), strict=False)
        return "\n".join([*lines, question, *(f"{letter}. {text}" for letter, text in letters)])

    def __str__(self) -> str:
        return f"{self.question} with {', '.join(self.choices)}"


class ChoiceAnswer(_Choice):
    """The letter and the text of the right choice; an answer in words as it is."""

    def get(self, record: Mapping[str, Any]) -> str | None:
        right = record.get(self.right)
        texts = self.texts(record)
        if isinstance(right, str) and right.strip().isdecimal() and right not in texts:
            right = int(right)
        if isinstance(right, str):
            letter = right.strip()
            if letter not in texts and len(letter) == 1 and letter in ascii_uppercase:
                right = ascii_uppercase.index(letter)
            elif texts and letter in texts:
                right = texts.index(letter)
            else:
                return right or None
        if right is None or right != right or isinstance(right, bool):
            return None
        if not texts:
            return str(right)
        if not isinstance(right, int) or not 0 <= right < len(texts):
            raise DecodeError(f"`{self.right}` is {right!r}, and there are {len(texts)} choices")
        return f"{ascii_uppercase[right]}. {texts[right]}"

    def __str__(self) -> str:
        return self.right


def choice_sources(
    columns: Mapping[str, Sequence[Any]], names: Mapping[str, str]
) -> tuple[tuple[str, Source], ...]:
    """Return the turns of a table of questions with choices; none where it is no such table.

    Args:
        columns: values by column.
        names: columns by their names in small letters.
    """
    if "question" not in names:
        return ()
    listed = [names[name] for name in _CHOICES if name in names]
    choices = tuple(listed[:1])
    if not choices:
        choices = _columns_of_choices(names)
    right = next((names[name] for name in _RIGHT if name in names), None)
    if not choices or right is None:
        return ()
    context = names.get(_CONTEXT)
    asked = ChoiceQuestion(names["question"], choices, right, context)
    answered = ChoiceAnswer(names["question"], choices, right, context)
    return (("user", asked), ("assistant", answered))


def _columns_of_choices(names: Mapping[str, str]) -> tuple[str, ...]:
    """Columns that hold a choice each, in order; none where there is no second."""
    kinds: dict[str, dict[str, str]] = {}
    for name, column in names.items():
        if found := _OF_ONE.fullmatch(name):
            kinds.setdefault(found["kind"], {})[found["which"]] = column
    for found_of_kind in kinds.values():
        for order in (ascii_lowercase, digits):
            run = [found_of_kind[which] for which in order if which in found_of_kind]
            if len(run) > 1:
                return tuple(run)
    return ()
