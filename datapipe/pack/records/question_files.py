"""Files of questions about images, and the files that hold their answers.

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
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import ReadOptions, Reject
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.captions import first_entry
from datapipe.pack.records.locate import LOOK, find_objects, only_one
from datapipe.pack.records.streams.containers import read_file
from datapipe.pack.records.streams.json_stream import read_member_arrays, read_members

ANSWERS = ("multiple_choice_answer", "answer", "answers")
"""Fields that hold an answer, or several answers; one is taken."""

IMAGES = ("image_id", "imageId", "image_filename", "image", "image_local_name", "file_name")
"""Fields that name the image of a question, by id or by file."""

_OF_IMAGES = "qas"
_LAYOUTS = ("questions", "data", "", _OF_IMAGES)  # see `QuestionFile.array`
_TEXT_MEMBER = r'"%s"\s*:\s*"([^"\\]{1,100})"'
_ENDS = 1 << 16
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

    def questions(self) -> Iterator[tuple[int, Any, str]]:
        """Yield number, value and name of the questions; the name is "" in an array."""
        for number, (name, value) in enumerate(_questions(self.path, self.array)):
            yield number, value, name


def image_field(question: Mapping[str, Any]) -> str:
    """Return the field that names the image of a question; "" if there is none."""
    for field in IMAGES:
        value = question.get(field)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return field
    return ""


def holds_questions(path: Path) -> bool:
    """Return whether a file holds questions about images, or answers to them; does not raise."""
    return _sniff(path) is not None or holds_answers(path)


def holds_answers(path: Path) -> bool:
    """Return whether a file holds `annotations` with answers to questions; does not raise."""
    entry = first_entry(path, "annotations")[1]
    return "question_id" in entry and any(field in entry for field in ANSWERS)


def open_questions(survey: Survey, options: ReadOptions) -> tuple[QuestionFile, Path | None]:
    """Return the file of questions, and that of their answers if it is another.

    PackError if there are none or several, or their answers are not there.
    """
    raw = survey.raw
    found = find_objects(survey, options, lambda path: _sniff(path) is not None)
    if not found:
        if alone := find_objects(survey, options, holds_answers):
            raise PackError(
                f"{alone[0]} holds answers; give the file of their questions, such as "
                "v2_OpenEnded_mscoco_val2014_questions.json, or a folder with both"
            )
        raise PackError(f"{raw}: no .json file here holds questions about images; give the file")
    files = [file for path in found if (file := survey.look(_sniff, path))]
    answers = {file: None if file.answered else _answers(file, survey) for file in files}
    whole = {file.path: file for file in files if file.answered or answers[file]}
    if not whole:
        raise _unanswered(files[0])
    for file in files:
        if file.path not in whole:
            options.notes.decide(f"{file.path.name} is left out: there are no answers to it")
    file = whole[only_one(raw, list(whole), "questions")]
    return file, answers[file]


def _sniff(path: Path) -> QuestionFile | None:
    """Return how a file holds questions, by its start; None if it holds none."""
    for array in _LAYOUTS:
        with suppress(PackError, OSError), closing(_questions(path, array, LOOK)) as entries:
            most = 1 if array == _OF_IMAGES else _MOST
            first = [question for _, question in islice(entries, 1)]
            if not first or not _is_question(first[0]):
                continue
            first += [question for _, question in islice(entries, most)]
            answered = any(isinstance(q, dict) and any(map(q.get, ANSWERS)) for q in first)
            members = [_text_member(path, name) for name in ("data_type", "data_subtype")]
            return QuestionFile(path, array, answered, *members)
    return None


def _questions(path: Path, array: str, most: int | None = None) -> Generator[tuple[str, Any]]:
    """Yield the name and the value of the questions of a file, as far as `most` bytes hold them."""
    if array != _OF_IMAGES:
        if array:
            for _, _, question in read_member_arrays(path, {array}, most=most):
                yield "", question
        else:
            yield from read_members(path, most=most)
        return
    with path.open("rb") as file:
        if not file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            return
    with closing(read_file(path, path.name)) as records:
        for _, record in records:
            questions = None if isinstance(record, Reject) else record.get(_OF_IMAGES)
            # What is no such image is yielded as None, and rejected.
            for question in questions if isinstance(questions, list) else [None]:
                yield "", question


def _is_question(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("question"), str)
        and bool(image_field(entry))
        # The answer is an index here, as in ScienceQA.
        and not (isinstance(entry.get("choices"), list) and isinstance(entry.get("answer"), int))
    )


def _text_member(path: Path, name: str) -> str:
    """Return a text that stands near the start or the end of a file, outside of its arrays."""
    with path.open("rb") as file:
        start = file.read(_ENDS)
        file.seek(max(path.stat().st_size - _ENDS, 0))
        end = file.read()
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
    near = (find_objects(base, ReadOptions(), holds_answers) for base in bases)
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
