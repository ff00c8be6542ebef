"""Questions about images, and the files that hold them and their answers.

| dataset | questions | answers |
|---|---|---|
| VQA, OK-VQA | `questions: [{image_id, question, question_id}]` | `annotations`, in a file beside |
| CLEVR | `questions: [{image_filename, question, answer}]` | in the questions |
| TextVQA, DocVQA | `data: [{image_id, question, answers}]` | in the questions |
| GQA | `{"07333408": {imageId, question, answer}}` | in the questions |
| Visual Genome | `[{qas: [{image_id, question, answer, qa_id}]}]` | in the questions |

Sources of the layouts: https://visualqa.org/download.html, https://textvqa.org/dataset,
https://cs.stanford.edu/people/dorarad/gqa/download.html,
https://homes.cs.washington.edu/~ranjay/visualgenome/api.html.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import MissingMember, PackError
from datapipe.pack.input.disk_join import disk_join, identity
from datapipe.pack.input.file_starts import ends_of
from datapipe.pack.input.raw_sample import Input, ReadOptions, Reject, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers.caption_list import names_image
from datapipe.pack.records.images.roots import PROBED, Images, Spelled, find_images, spelled
from datapipe.pack.records.locate import LOOK, find_objects, only_one
from datapipe.pack.records.reader import (
    Captioned,
    first_entries,
    first_entry,
    parsed_entries,
    samples_of,
)
from datapipe.pack.records.streams.containers import first_records, read_file
from datapipe.pack.records.streams.json_stream import read_member_arrays, read_members

# Fields that hold an answer, or several answers; one is taken.
_ANSWERS = ("multiple_choice_answer", "answer", "answers")
# Fields that name the image of a question, by id or by file.
_IMAGES = ("image_id", "imageId", "image_filename", "image", "image_local_name", "file_name")

_OF_IMAGES = "qas"
_LAYOUTS = ("questions", "data", "", _OF_IMAGES)  # see `QuestionFile.array`
_TEXT_MEMBER = r'"%s"\s*:\s*"([^"\\]{1,100})"'
_ENDS = 1 << 16
_IDS = ("question_id", "questionId", "question_index", "qa_id")
_FIRST = 5000  # questions among which the first images are looked for
_MOST = 100  # questions looked at; one has to have an answer


@dataclass(frozen=True)
class QuestionFile:
    """File of questions."""

    path: Path  # the file
    # Member that holds the questions; "" where each is a member of its own; "qas" where the file is
    # an array of images with theirs
    array: str
    answered: bool  # whether the questions hold their answers
    # `data_type`, `subtype`: what VQA says of its images, such as "mscoco" and "val2014"; may be ""
    data_type: str
    subtype: str

    def source(self, number: int, name: str = "") -> str:
        path = printable(self.path.name)
        if name:
            return f"{path}#{printable(name)}"
        return f"{path}: {self.array or 'members'}[{number}]"


Questions = tuple[QuestionFile, Path | None, Images]  # `Path` is the file of their answers


class VqaReader:
    """Reader whose samples are images with all their questions, as turns in the file's order.

    An answer is `multiple_choice_answer` or `answer`, else that given most often in `answers`, the
    first of equals.
    """

    name = "vqa"
    summary = "questions about images: VQA, OK-VQA, GQA, TextVQA, DocVQA, CLEVR, Visual Genome"
    takes = frozenset({"image_root", "include", "key_from"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        return bool(find_objects(survey, options, _holds_questions))

    def open(self, survey: Survey, options: ReadOptions) -> Questions:
        raw = survey.raw
        found = find_objects(survey, options, _sniff)
        if not found:
            if alone := find_objects(survey, options, _holds_answers):
                raise PackError(
                    f"{alone[0]} holds answers; give the file of their questions, such as "
                    "v2_OpenEnded_mscoco_val2014_questions.json, or a folder with both"
                )
            raise PackError(
                f"{raw}: no .json file here holds questions about images; give the file"
            )
        files = [file for path in found if (file := survey.look(_sniff, path))]
        answers = {file: None if file.answered else _answers(file, survey) for file in files}
        whole = {file.path: file for file in files if file.answered or answers[file]}
        if not whole:
            raise _unanswered(files[0])
        for file in files:
            if file.path not in whole:
                options.notes.decide(f"{file.path.name} is left out: there are no answers to it")
        file = whole[only_one(raw, list(whole), "questions")]
        return file, answers[file], _find_images(file, raw, options)

    def estimate(self, source: Questions, options: ReadOptions) -> int | None:
        return None

    def read(self, source: Questions, options: ReadOptions) -> Iterator[Input]:
        file, annotations, images = source
        return samples_of(_entries(file, annotations, options), images, options)


def _entries(
    file: QuestionFile, annotations: Path | None, options: ReadOptions
) -> Iterator[Captioned | Reject]:
    """Yield the images with their turns, and the questions and answers that are in none."""

    def answer_source(number: int) -> str:
        assert annotations is not None
        return f"{printable(annotations.name)}: annotations[{number}]"

    options.notes.decide("all questions about an image are one sample, a turn each")
    with disk_join(options.scratch, "question", "answer") as (questions, answers):
        entries = ((n, *entry) for n, entry in enumerate(_questions(file.path, file.array)))
        questions.load(parsed_entries(entries, _question))
        if annotations is not None:
            options.notes.use(annotations)
            options.notes.decide(f"answers are read from {printable(annotations.name)}")
            arrays = read_member_arrays(annotations, {"annotations"})
            answers.load(parsed_entries(((n, value) for _, n, value in arrays), _answer))
        for image in questions.ids():
            turns = []
            for number, body in questions.of(image):
                source, id = file.source(number, body["name"]), body["id"]
                if id is not None and not answers.claim(id):
                    reason = f"a question before it has the same id {id}"
                    yield Reject(source, reason, "DecodeError")
                    continue
                found = answers.of(id) if id is not None else []
                answer, rest = found[0][1] if found else (None, {})
                for other, _ in found[1:]:
                    reason = f"an annotation before it answers the same question {id}"
                    yield Reject(answer_source(other), reason, "DecodeError")
                answer = answer if body["answer"] is None else body["answer"]
                if answer is None:
                    yield Reject(source, "question has no answer", "MissingMember")
                else:
                    turns.append({**body, "answer": answer, "rest": body["rest"] | rest})
            if turns:
                messages = [
                    {"role": role, "content": turn[name]}
                    for turn in turns
                    for role, name in (("user", "question"), ("assistant", "answer"))
                ]
                said = {"messages": messages, "questions": [turn["rest"] for turn in turns]}
                record = turns[0]["image"] | said
                source = f"{printable(file.path.name)}#{image}"
                yield Captioned(source, _spelled(file, image), None, record)
        yield from questions.rejects(file.source)
        yield from answers.rejects(answer_source, "questions")


def _find_images(file: QuestionFile, raw: Path, options: ReadOptions) -> Images:
    questions = [value for value, _ in islice(_questions(file.path, file.array), _FIRST)]
    found = dict.fromkeys(
        str(value[field])
        for value in questions
        if isinstance(value, dict) and (field := _image_field(value))
    )
    # Not the first alone, as images may be in several folders in turn.
    names = list(found)[:: max(len(found) // PROBED, 1)][:PROBED]
    return find_images(file.path, raw, options, [_spelled(file, name) for name in names])


def _spelled(file: QuestionFile, image: str) -> Spelled:
    """Return the names that the file of an image may have: as COCO has them, or as it is called."""
    if names_image(image):
        return spelled(image)
    subtypes = [file.subtype] if file.subtype else ["train2014", "val2014"]
    coco = [f"COCO_{subtype}_{image:0>12}.jpg" for subtype in subtypes]
    if file.data_type and file.subtype:
        coco.append(f"{file.data_type}_{file.subtype}_{image:0>12}.png")
    coco.append(f"{image:0>12}.jpg")
    return [name if image.isdecimal() else "" for name in coco] + [*spelled(image)]


def _question(value: dict[str, Any], name: str) -> tuple[str, Any]:
    text, field = value.get("question"), _image_field(value)
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
    for name in _ANSWERS:
        value = fields.get(name)
        values = value if isinstance(value, list) else [value]
        texts = [v.get("answer") if isinstance(v, Mapping) else v for v in values]
        numbers = [str(t) if type(t) in (int, float) else t for t in texts]
        counts = Counter(t for t in numbers if isinstance(t, str) and t.strip())
        if counts:
            return counts.most_common(1)[0][0]
    return None


def _image_field(question: Mapping[str, Any]) -> str:
    for field in _IMAGES:
        value = question.get(field)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return field
    return ""


def _holds_questions(path: Path) -> bool:
    return _sniff(path) is not None or _holds_answers(path)


def _holds_answers(path: Path) -> bool:
    entry = first_entry(path, "annotations")[1]
    return "question_id" in entry and any(field in entry for field in _ANSWERS)


def _sniff(path: Path) -> QuestionFile | None:
    """Return how a file holds questions, by its start; None if it holds none."""
    for array in _LAYOUTS:
        with suppress(PackError):
            most = 1 if array == _OF_IMAGES else _MOST
            first = [value for value, _ in first_entries(_questions(path, array, LOOK), 1 + most)]
            if first and _is_question(first[0]) and (most == 1 or not _are_lines(path)):
                answered = any(isinstance(q, dict) and any(map(q.get, _ANSWERS)) for q in first)
                members = [_text_member(path, name) for name in ("data_type", "data_subtype")]
                return QuestionFile(path, array, answered, *members)
    return None


def _are_lines(path: Path) -> bool:
    """Return whether a file has a record a line, which other readers take."""
    with suppress(PackError):
        return len(list(islice(first_records(path), 2))) > 1
    return False


def _questions(path: Path, array: str, most: int | None = None) -> Generator[tuple[Any, str]]:
    """Yield the questions of a file, each with its name in an object, as far as in `most` bytes."""
    if not array:
        for name, question in read_members(path, most=most):
            yield question, name
    elif array != _OF_IMAGES:
        for _, _, question in read_member_arrays(path, {array}, most=most):
            yield question, ""
    elif ends_of(path, 64)[0].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        with closing(read_file(path, path.name)) as records:
            for _, record in records:
                questions = None if isinstance(record, Reject) else record.get(_OF_IMAGES)
                # What is no such image is yielded as None, and rejected.
                for question in questions if isinstance(questions, list) else [None]:
                    yield question, ""


def _is_question(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("question"), str)
        and bool(_image_field(entry))
        # The answer is an index here, as in ScienceQA.
        and not (isinstance(entry.get("choices"), list) and isinstance(entry.get("answer"), int))
    )


def _text_member(path: Path, name: str) -> str:
    """Return a text that stands near the start or the end of a file, outside of its arrays."""
    start, end = ends_of(path, _ENDS)
    pattern = re.compile((_TEXT_MEMBER % name).encode())
    match = pattern.search(start) or pattern.search(end)
    return match[1].decode(errors="replace") if match else ""


def _answers_name(path: Path) -> str:
    """Return how VQA calls the answers to a file of questions."""
    return re.sub(r"(OpenEnded|MultipleChoice)_", "", path.name).replace("questions", "annotations")


def _answers(file: QuestionFile, survey: Survey) -> Path | None:
    """Return the nearest file of answers that has the usual name, else one of the same images."""
    here = file.path.absolute().parent
    bases = [Survey(here), Survey(here.parent), *([survey] if survey.is_folder else [])]
    near = (find_objects(base, ReadOptions(), _holds_answers) for base in bases)
    found = list(dict.fromkeys(path.absolute() for paths in near for path in paths))
    same_name = [path for path in found if path.name == _answers_name(file.path)]
    same_images = [path for path in found if _text_member(path, "data_subtype") == file.subtype]
    for fitting in (same_name, same_images):
        nearest = [path for path in fitting if path.parent == fitting[0].parent]
        if len(nearest) == 1:
            return nearest[0]
        if nearest:
            raise PackError(
                f"{file.path}: its answers may be in any of {', '.join(map(str, nearest))}; "
                f"leave one there, or call the right one {_answers_name(file.path)}"
            )
    return None


def _unanswered(file: QuestionFile) -> PackError:
    remedy = ", as test splits do; give a split that has `answers`"
    if file.array == "questions":
        remedy = (
            ", and the file of their answers is not beside it: put "
            f"{_answers_name(file.path)} there or into a folder `annotations` (test splits have "
            "none)"
        )
    return PackError(f"{file.path} holds questions without answers{remedy}")


READER = VqaReader()
