"""Questions about images: VQA, GQA, TextVQA and others whose files `question_files` knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.errors import MissingMember, SampleError
from datapipe.pack.input.disk_join import Entries, disk_join, identity
from datapipe.pack.input.raw_sample import RawImage, RawSample, ReadOptions, Reject, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers.caption_list import names_image
from datapipe.pack.records.captions import parsed_entries
from datapipe.pack.records.images.fields import named_blob, rejected
from datapipe.pack.records.images.roots import PROBED, Images, find_images
from datapipe.pack.records.images.spelling import Spelling, spellings_of_names
from datapipe.pack.records.locate import find_objects
from datapipe.pack.records.question_files import (
    ANSWERS,
    QuestionFile,
    holds_questions,
    image_field,
    open_questions,
)
from datapipe.pack.records.streams.json_stream import read_member_arrays
from datapipe.pack.records.streams.record_files import key_of_record, plain

_IDS = ("question_id", "questionId", "question_index", "qa_id")
_FIRST = 5000  # questions among which the first images are looked for


class Questions(NamedTuple):
    """File of questions, that of their answers if it is another, and the folders of the images."""

    file: QuestionFile
    annotations: Path | None
    images: Images

    def source(self, number: int, name: str = "") -> str:
        path = printable(self.file.path.name)
        if name:
            return f"{path}#{printable(name)}"
        return f"{path}: {self.file.array or 'members'}[{number}]"

    def annotation(self, number: int) -> str:
        assert self.annotations is not None
        return f"{printable(self.annotations.name)}: annotations[{number}]"


class VqaReader:
    """Reader whose samples are images with all their questions, as turns in the file's order.

    An answer is `multiple_choice_answer` or `answer`, else that given most often in `answers`, the
    first of equals.
    """

    name = "vqa"
    summary = "questions about images: VQA, OK-VQA, GQA, TextVQA, DocVQA, CLEVR, Visual Genome"
    fallback = False
    takes = frozenset({"image_root", "include", "key_from"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        return bool(find_objects(survey, options, holds_questions))

    def open(self, survey: Survey, options: ReadOptions) -> Questions:
        file, annotations = open_questions(survey, options)
        return Questions(file, annotations, _find_images(file, survey.raw, options))

    def estimate(self, source: Questions, options: ReadOptions) -> int | None:
        return None

    def read(self, source: Questions, options: ReadOptions) -> Iterator[RawSample | Reject]:
        file, annotations, _ = source
        options.notes.decide("all questions about an image are one sample, a turn each")
        with disk_join(options.scratch, "question", "answer") as (questions, answers):
            questions.load(parsed_entries(file.questions(), _question))
            if annotations is not None:
                options.notes.use(annotations)
                options.notes.decide(f"answers are read from {printable(annotations.name)}")
                arrays = read_member_arrays(annotations, {"annotations"})
                answers.load(parsed_entries(((n, value) for _, n, value in arrays), _answer))
            for image in questions.ids():
                turns = []
                for turn in _turns(source, questions, answers, image):
                    if isinstance(turn, Reject):
                        yield turn
                    else:
                        turns.append(turn)
                if turns:
                    label = f"{printable(file.path.name)}#{image}"
                    yield _sample(label, turns, image, source.images, options)
            yield from questions.rejects(source.source)
            yield from answers.rejects(source.annotation, "questions")


def _find_images(file: QuestionFile, raw: Path, options: ReadOptions) -> Images:
    found: dict[str, None] = {}
    for _, value, _ in islice(file.questions(), _FIRST):
        if isinstance(value, dict) and (field := image_field(value)):
            found[str(value[field])] = None
    # Not the first alone, as images may be in several folders in turn.
    names = list(found)[:: max(len(found) // PROBED, 1)][:PROBED]
    return find_images(file.path, raw, options, names, _spellings(file, names))


def _spellings(file: QuestionFile, names: list[str]) -> tuple[Spelling, ...]:
    """Return how files of these ids or names may be called: as COCO calls them, or as they are."""

    def numbered(prefix: str, suffix: str) -> Spelling:
        return lambda name: f"{prefix}{name:0>12}{suffix}" if name.isdecimal() else ""

    if all(map(names_image, names)):
        return spellings_of_names(names)
    subtypes = [file.subtype] if file.subtype else ["train2014", "val2014"]
    coco = [numbered(f"COCO_{subtype}_", ".jpg") for subtype in subtypes]
    if file.data_type and file.subtype:
        coco.append(numbered(f"{file.data_type}_{file.subtype}_", ".png"))
    return (*coco, numbered("", ".jpg"), *spellings_of_names(names))


def _question(value: dict[str, Any], name: str) -> tuple[str, Any]:
    text, field = value.get("question"), image_field(value)
    image = identity(value[field]) if field else None
    if not isinstance(text, str) or not text.strip():
        raise MissingMember("entry has no `question`")
    if image is None:
        raise MissingMember("question names no image (`image_id`)")
    ids = (identity(value.get(id_field)) for id_field in _IDS)
    return image, {
        "name": name,
        "question": text,
        "id": next(filter(None, ids), name or None),
        "answer": _chosen(value),
        "image": {field: value[field]},
        "rest": {f: v for f, v in value.items() if f not in ("question", field)},
    }


def _answer(value: dict[str, Any]) -> tuple[str, Any]:
    """Return the question of an annotation, with its answer and its other fields."""
    question = identity(value.get("question_id"))
    if question is None:
        raise MissingMember("annotation has no `question_id`")
    rest = {f: v for f, v in value.items() if f not in ("question_id", "image_id")}
    return question, [_chosen(value), rest]


def _chosen(fields: Mapping[str, Any]) -> str | None:
    """Return the one answer, else the one that was given most often; None without any."""
    for name in ANSWERS:
        value = fields.get(name)
        values = value if isinstance(value, list) else [value]
        texts = [v.get("answer") if isinstance(v, Mapping) else v for v in values]
        numbers = [str(t) if type(t) in (int, float) else t for t in texts]
        counts = Counter(t for t in numbers if isinstance(t, str) and t.strip())
        if counts:
            return counts.most_common(1)[0][0]
    return None


def _turns(
    files: Questions, questions: Entries, answers: Entries, image: str
) -> Iterator[dict[str, Any] | Reject]:
    """Yield the questions about an image in order, those without an answer as rejects."""
    for number, body in questions.of(image):
        source, id = files.source(number, body["name"]), body["id"]
        if id is not None and not answers.claim(id):
            reason = f"a question before it has the same id {id}"
            yield Reject(source, reason, "DecodeError")
            continue
        found = answers.of(id) if id is not None else []
        answer, rest = found[0][1] if found else (None, {})
        for other, _ in found[1:]:
            reason = f"an annotation before it answers the same question {id}"
            yield Reject(files.annotation(other), reason, "DecodeError")
        answer = answer if body["answer"] is None else body["answer"]
        if answer is None:
            yield Reject(source, "question has no answer", "MissingMember")
        else:
            yield {**body, "answer": answer, "rest": body["rest"] | rest}


def _sample(
    source: str, turns: Sequence[dict[str, Any]], image: str, images: Images, options: ReadOptions
) -> RawSample | Reject:
    roles = (("user", "question"), ("assistant", "answer"))
    messages = [{"role": role, "content": turn[name]} for turn in turns for role, name in roles]
    try:
        whole = {"messages": messages, "questions": [turn["rest"] for turn in turns]}
        record, _ = plain(turns[0]["image"] | whole)
        key = key_of_record(record, options)
        blob = named_blob(image, images, source)
    except SampleError as error:
        return rejected(source, error)
    return RawSample(source, (RawImage(blob),), record=record, key=key)


READER = VqaReader()
