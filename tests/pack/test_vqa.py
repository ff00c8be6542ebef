"""Questions and answers of VQA are joined in flat memory."""

import json
import tracemalloc

import pytest

from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.readers.vqa import READER

from .reading import read_all


@pytest.mark.campaign
def test_memory_stays_flat_however_many_questions(tmp_path):
    many = 10_000
    questions = [
        {"image_id": number % 500, "question": "what is this? " + "x" * 100, "question_id": number}
        for number in range(many)
    ]
    answers = [
        {"answer": text, "answer_confidence": "yes", "answer_id": id}
        for id, text in enumerate("abcdefghij", 1)
    ]
    annotations = [{"question_id": number, "answers": answers} for number in range(many)]
    (tmp_path / "questions.json").write_text(json.dumps({"questions": questions}))
    (tmp_path / "annotations.json").write_text(json.dumps({"annotations": annotations}))
    (tmp_path / "0.jpg").touch()
    del questions, annotations
    tracemalloc.start()
    try:
        asked = sum(len(s.record["questions"]) for s in read_all(READER, tmp_path, ReadOptions()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert asked == many
    assert peak < 8 * 2**20
