"""Texts that known data sets keep in several columns or as JSON.

Questions with choices (ScienceQA, A-OKVQA, AI2D, MMBench, MMMU), Donut, PixMo, Alpaca, TRL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from datapipe.errors import DecodeError, MissingMember
from datapipe.pack.records.fields.field_map import FieldMap, is_there
from datapipe.pack.records.fields.field_path import FieldSource, parse_list
from datapipe.pack.records.fields.refusals import TableColumns
from datapipe.text.conversation import PAIRS


def donut_text(table: TableColumns) -> FieldMap | None:
    """Return the text of Donut's `ground_truth`; None if the table has none.

    It is the page's text, or the JSON of its fields, or questions with the first of their answers.
    Source: https://github.com/clovaai/donut, "Data": `{"gt_parse": {...}}`, `{"gt_parse":
    {"text_sequence": ...}}`, or `{"gt_parses": [{"question": ..., "answer": ...}]}`.
    """
    name = table.names.get("ground_truth")
    if name is None:
        return None

    def truth_of(value: Any) -> Mapping[str, Any]:
        truth = parse_list(value)
        return truth if isinstance(truth, Mapping) else {}

    def caption(record: Mapping[str, Any]) -> str | None:
        truth = truth_of(record.get(name))
        parse = truth.get("gt_parse")
        text = parse.get("text_sequence") if isinstance(parse, Mapping) else None
        if isinstance(text, str) or not truth:
            return text
        return json.dumps(parse, ensure_ascii=False)

    def turns(record: Mapping[str, Any]) -> list[Any]:
        parses = truth_of(record.get(name)).get("gt_parses")
        if not isinstance(parses, list):
            raise DecodeError(f"`{name}` has no `gt_parses`")
        first: dict[str, Any] = {}
        for parse in parses:
            question = parse.get("question") if isinstance(parse, Mapping) else None
            if not isinstance(question, str) or not is_there(question):
                raise DecodeError(f"`{name}` has an entry in `gt_parses` without a question")
            first.setdefault(question, parse.get("answer"))
        return [{"question": question, "answer": answer} for question, answer in first.items()]

    truths = list(map(truth_of, table.columns[name]))
    if all("gt_parses" in truth for truth in truths):
        return FieldMap(messages=FieldSource(name, (name,), turns))
    if all(truth.keys() & {"gt_parse", "gt_parses"} for truth in truths):
        return FieldMap(caption=FieldSource(name, (name,), caption))
    return None


def turns_in_lists(table: TableColumns) -> FieldMap | None:
    """Return the turns of a column of objects with a list of questions and one of answers.

    `questions: {question: [...], answer: [...]}` of PixMo-Docs, `qa_pairs` of CoSyn-400K.
    Sources: https://huggingface.co/datasets/allenai/pixmo-docs, .../allenai/CoSyn-400K.
    """
    pairs = {name: _pair_of_lists(table.columns[name]) for name in table.names.values()}
    found = [(name, pair) for name, pair in pairs.items() if pair]
    if len(found) != 1:
        return None
    ((name, (asked, answered)),) = found

    def get(record: Mapping[str, Any]) -> list[Any]:
        held = record.get(name)
        held = held if isinstance(held, Mapping) else {}
        questions, answers = held.get(asked) or [], held.get(answered) or []
        if len(questions) != len(answers):
            raise DecodeError(
                f"`{name}` has {len(questions)} in `{asked}` and {len(answers)} in `{answered}`"
            )
        pairs = list(zip(questions, answers, strict=True))
        if any(is_there(question) != is_there(answer) for question, answer in pairs):
            raise DecodeError(f"`{name}` has only one of `{asked}` and `{answered}` at a place")
        pairs = [pair for pair in pairs if is_there(pair[0])]
        if not pairs:
            raise MissingMember(f"`{name}` holds no question")
        return [{asked: question, answered: answer} for question, answer in pairs]

    source = f"{name}.{asked} and {name}.{answered}"
    return FieldMap(messages=FieldSource(source, (name,), get))


def _pair_of_lists(values: Sequence[Any]) -> tuple[str, str] | None:
    """Return the names of the lists of questions and of answers in objects; null is empty."""
    if not all(isinstance(value, Mapping) for value in values):
        return None
    for pair in PAIRS:
        lists = [value.get(name) or [] for value in values for name in pair]
        texts = [t for texts in lists for t in (texts if isinstance(texts, list) else [0])]
        if any(texts) and all(isinstance(text, str | None) for text in texts):
            return pair
    return None


def instruction_and_input(instruction: str, more: str) -> FieldSource:
    """Return the source of Alpaca's `instruction`, with its `input`, if any, on the next line."""

    def get(record: Mapping[str, Any]) -> str | None:
        texts = [record.get(instruction), record.get(more)]
        return "\n".join(text for text in texts if isinstance(text, str) and text) or None

    return FieldSource(f"{instruction} and {more}", (instruction, more), get)


def joined_turns(first: str, second: str) -> FieldSource:
    """Return the source of the turns of two columns, one behind the other."""

    def get(record: Mapping[str, Any]) -> list[Any] | None:
        lists = [parse_list(record.get(name)) for name in (first, second)]
        return [turn for turns in lists if isinstance(turns, list) for turn in turns] or None

    return FieldSource(f"{first} and {second}", (first, second), get)


_CHOICES = ("choices", "options")
_QUESTION = ("question", "problem", "query")
_RIGHT = (
    *("correct_choice_idx", "answer", "answer_idx", "gold_index", "label", "correct_answer"),
    *("correct_option", "answer_key", "answerkey", "gt_answer"),
)
_TEXTS = ("text", "value", "content", "option", "choice")  # of a choice that is an object
_LABELS = ("label", "key", "letter", "id")
_CONTEXT = "hint"
# A column for each: `A` of MMBench, `Choice A` of PMC-VQA, `option_a`, `choice1`.
_OF_ONE = re.compile(r"(?P<kind>(choice|option|opt)[ _-]?(?=.)|(?=[a-h]))(?P<which>[a-h]|\d)")
_LETTER = re.compile(r"\(?([A-Za-z])[:.)]?")
_OWN_LETTER = re.compile(r"\s*\(?(?P<letter>[A-Ha-h])\s*[:.)]\s*")


@dataclass(frozen=True)
class _Choices:
    """Columns of a question, of its choices, of the right one and maybe of a hint.

    The choices are part of the question, a line each with a letter before it; the answer is the
    letter and the text of the right one: `0` or `B` alone would teach a number of a list.
    """

    question: str
    choices: tuple[str, ...]
    right: str
    context: str | None = None

    def listed(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the text of each choice by its letter; "" where a row has none of that letter."""
        values = [record.get(name) for name in self.choices]
        if len(self.choices) > 1:
            return _lettered(values)
        held = parse_list(values[0])
        if not isinstance(held, Mapping):
            return _lettered(held if isinstance(held, list) else [])
        texts, labels = held.get("text"), held.get("label")
        if isinstance(texts, list) and isinstance(labels, list):  # of ARC
            return dict(zip(map(str, labels), map(str, texts), strict=False))
        return {str(k): str(text) if is_there(text) else "" for k, text in held.items()}

    def names_choices(self, record: Mapping[str, Any], choices: Mapping[str, str]) -> bool:
        """Return whether the question lists its choices itself, and as the answer names them.

        An answer such as `B` or `1` has to stand before the text of a choice there.
        """
        question, right = str(record.get(self.question)), _whole(record.get(self.right))
        texts = list(filter(None, choices.values()))
        if not texts or not all(_names(question, text) for text in texts):
            return False
        word = str(right).strip()
        if isinstance(right, str) and word in texts:
            return True  # a number is that of a choice
        found = _LETTER.fullmatch(word)
        if not (found or word.isdecimal() or word in choices):
            return True  # in words
        label = found[1] if found else word
        return any(_is_labelled(question, label, text) for text in texts)

    def ask(self, record: Mapping[str, Any]) -> str | None:
        """Return the question, with a line for each choice unless it lists them itself."""
        question = record.get(self.question)
        if not isinstance(question, str):
            return None
        context = record.get(self.context) if self.context else None
        lines = [context] if isinstance(context, str) and is_there(context) else []
        choices = self.listed(record)
        pairs = [(letter, text) for letter, text in choices.items() if text]
        shown = [f"{letter}. {text}" for letter, text in pairs]
        listed = all(_is_labelled(question, *pair) for pair in pairs)
        if listed or self.names_choices(record, choices):
            shown = []
        said = record.get(self.choices[0]) if len(self.choices) == 1 else None
        if (
            isinstance(said, str)
            and is_there(said)
            and parse_list(said) is None
            and " ".join(said.split()) not in " ".join(question.split())
        ):
            shown = [said.strip()]  # a text of all of them
        return "\n".join([*lines, question, *shown])

    def answer(self, record: Mapping[str, Any]) -> str | None:
        """Return letter and text of the right choice.

        An answer in words stays as it is, as does any to a question that lists its choices.
        """
        right = _whole(record.get(self.right))
        if not is_there(right) or isinstance(right, bool):
            return None
        choices = self.listed(record)
        if self.names_choices(record, choices):
            return str(right).strip()
        letters, texts = list(choices), list(choices.values())
        if not any(texts) or not isinstance(right, str | int):
            return str(right)
        word = str(right).strip()
        if isinstance(right, int):
            index = right
        elif word in texts:
            index = texts.index(word)
        elif word in letters:
            index = letters.index(word)
        elif word.isdecimal():
            index = int(word)
        elif found := _LETTER.fullmatch(word):
            upper = found[1].upper()
            index = next((n for n, k in enumerate(letters) if k.upper() == upper), -1)
        else:
            return str(right)
        if not 0 <= index < len(texts) or not texts[index]:
            there = len(list(filter(None, texts)))
            raise DecodeError(f"`{self.right}` is {right!r}, and there are {there} choices")
        return f"{letters[index]}. {texts[index]}"


def _whole(value: Any) -> Any:
    """Return an index that pandas wrote as a float, as beside missing ones, as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_labelled(question: str, label: str, text: str) -> bool:
    """Return whether a choice stands in a question behind its label, or begins with it."""
    label = re.escape(label)
    if re.match(rf"[\W_]{{0,3}}{label}(?![A-Za-z0-9])\s?[^\w\s]", text, re.IGNORECASE):
        return text in question
    between = r"[\W_]{0,8}" if label.isalpha() else r"[^\w,;/|]{1,8}"  # `2, 3` are two choices
    pattern = rf"(?<![A-Za-z0-9]){label}{between}{re.escape(text)}"
    return bool(re.search(pattern, question, re.IGNORECASE))


def _names(question: str, text: str) -> bool:
    """Return whether a text stands in a question, as words of its own: `1` is not among 12."""
    first, last = (
        next((kind for kind in ("[0-9]", "[A-Za-z]") if re.match(kind, letter)), "(?!)")
        for letter in (text[0], text[-1])
    )
    return bool(re.search(f"(?<!{first}){re.escape(text)}(?!{last})", question))


def _lettered(values: Sequence[Any]) -> dict[str, str]:
    """Return choices by letter, in order: by the letters they have themselves, or A, B, C."""
    choices = [value for value in values if is_there(value)]
    letters = list(ascii_uppercase[: len(values)])
    if choices and all(isinstance(choice, Mapping) for choice in choices):
        texts, labels = (
            [next((str(c[n]) for n in names if is_there(c.get(n))), "") for c in choices]
            for names in (_TEXTS, _LABELS)
        )
        if len({*labels} - {""}) == len(labels):
            letters = labels
    else:
        texts = [str(value) if is_there(value) else "" for value in values]
        found = [_OWN_LETTER.match(text) for text in texts]
        pairs = list(zip(letters, texts, found, strict=False))
        if all(f["letter"].upper() == k if f else not text for k, text, f in pairs):
            texts = [text[f.end() :].strip() if f else "" for _, text, f in pairs]
    return dict(zip(letters, texts, strict=False))


def choice_sources(names: Mapping[str, str]) -> tuple[tuple[str, FieldSource], ...]:
    """Return the turns of a table of questions with choices; `names` are columns by lower names."""
    question, listed, right = (
        next((names[name] for name in known if name in names), None)
        for known in (_QUESTION, _CHOICES, _RIGHT)
    )
    choices = (listed,) if listed else _columns_of_choices(names)
    if question is None or not choices or right is None:
        return ()
    context = names.get(_CONTEXT)
    known = _Choices(question, choices, right, context)
    fields = (question, *choices, right, *([context] if context else []))
    asked = FieldSource(f"{question} with {', '.join(choices)}", fields, known.ask)
    return (("user", asked), ("assistant", FieldSource(right, fields, known.answer)))


def _columns_of_choices(names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that hold a choice each, in order; none where there is no second."""
    kinds: dict[tuple[str, bool], dict[str, str]] = {}
    for name, column in names.items():
        if found := _OF_ONE.fullmatch(name):
            which = found["which"]
            kinds.setdefault((found["kind"], which.isdigit()), {})[which] = column
    # Letters go before numbers.
    for key in sorted(kinds, key=lambda key: key[1]):
        if len(kinds[key]) > 1:
            return tuple(column for _, column in sorted(kinds[key].items()))
    return ()
