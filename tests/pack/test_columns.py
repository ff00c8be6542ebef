"""Meaning of the columns of a table: turns, a caption, or a refusal that names the remedy."""

import json
import re
from functools import partial

import pytest

from datapipe import PackError
from datapipe.pack.input.raw_sample import RawSample
from datapipe.pack.readers.table import READER
from datapipe.text.conversation import conversation

from .cases import cases, record_cases, values
from .reading import read as read_inputs


@pytest.fixture
def raw(tmp_path, put):
    """Writes rows beside 0.jpg, 1.jpg and 2.jpg."""
    put(tmp_path, {"0.jpg": 0, "1.jpg": 1, "2.jpg": 2})
    return lambda *rows: put(tmp_path, {"data.jsonl": rows}) / "data.jsonl"


read = partial(read_inputs, READER)


def turns(sample):
    assert isinstance(sample, RawSample), sample
    return [(turn.role, turn.text, turn.trained) for turn in conversation(sample.record)]


@pytest.mark.parametrize(("row", "said"), record_cases("rows that become turns"))
def test_columns_become_turns(raw, row, said):
    (sample,) = read(raw({"image": "0.jpg"} | row))
    asked, answer = json.loads(said)
    assert turns(sample) == [("user", asked, False), ("assistant", answer, True)]


@pytest.mark.parametrize("columns", values("columns of choices"), ids=str)
def test_a_question_with_choices_names_them_and_the_answer_in_words(raw, columns):
    (sample,) = read(raw({"image": "0.jpg", "Question": "Which?"} | columns))
    assert turns(sample) == [
        ("user", "Which?\nA. cat\nB. dog", False),
        ("assistant", "B. dog", True),
    ]


@pytest.mark.parametrize("answer", [2, "2", "C", "(c)"])
@pytest.mark.parametrize("choices", [["cat", "dog"], ["cat", "dog", None, "cow"]], ids=str)
def test_an_answer_that_is_none_of_the_choices_is_a_reject(raw, choices, answer):
    row = {"image": "0.jpg", "question": "Which?", "choices": choices, "answer": answer}
    (reject,) = read(raw(row))
    assert f"there are {len(choices) - choices.count(None)} choices" in reject.reason


@pytest.mark.parametrize("columns", values("answers with a verdict"), ids=str)
def test_an_answer_that_its_row_calls_bad_is_a_reject(raw, columns):
    path = raw(*({"image": "0.jpg", "label": label} | columns for label in (True, False)))
    good, bad = read(path)
    assert turns(good)[-1] == ("assistant", "A cat", True)
    assert bad.reason == "record says by `label: false` that its answer is a bad one"
    mapped = read(path, map=f"user={next(iter(columns))},assistant={[*columns][-1]}")
    assert [sample.record["label"] for sample in mapped] == [True, False]


def test_a_text_alone_is_refused_where_its_ids_name_images_beside_it(raw, jpeg, put):
    path = raw({"ID": "scan_7", "Caption": "A lung"}, {"ID": "scan_8", "Caption": "A knee"})
    put(path.parent / "train", {"scan_7.jpg": 7, "scan_8.jpg": 8})
    with pytest.raises(PackError, match="images are here whose names hold the ids") as caught:
        read(path)
    first, second = read(path, **remedy(str(caught.value)))
    assert (first.caption, first.images[0].blob.read()) == ("A lung", jpeg(7))
    assert second.caption == "A knee"


# --- what is refused --------------------------------------------------------------------------


def remedy(message):
    """The value of the first --map or --image-column that a message gives in quotes."""
    option, value = re.search(r"--(map|image-column|text-column) '([^']*)'", message).groups()
    return {option.replace("-", "_"): value}


@pytest.mark.parametrize(
    ("record", "words"), record_cases("rows that could be meant in several ways")
)
def test_text_that_could_be_meant_in_several_ways_is_refused_and_the_remedy_works(
    raw, record, words
):
    path = raw(record)
    with pytest.raises(PackError, match=words) as caught:
        read(path)
    (sample,) = read(path, **remedy(str(caught.value)))
    assert sample.images


@pytest.mark.parametrize(("record", "words"), record_cases("rows whose images are elsewhere"))
def test_a_table_of_text_whose_images_are_elsewhere_is_refused(raw, record, words):
    path = raw(record)
    with pytest.raises(PackError, match=words) as caught:
        read(path)
    assert "--image-column ''" in str(caught.value)
    (sample,) = read(path, image_column="")
    assert not sample.images


@pytest.mark.parametrize(
    ("name", "number"),
    [("COCO_000000000007.jpg", 7), ("sub/7.jpg", 7), ("a_12x.jpg", "a_12x"), ("x07.jpg", "7")],
)
def test_the_remedy_for_ids_is_the_name_of_the_files_that_are_there(raw, tmp_path, name, number):
    (tmp_path / "sub").mkdir()
    (tmp_path / "0.jpg").rename(tmp_path / name)
    path = raw({"image_id": number, "caption": "A red cat"})
    with pytest.raises(PackError, match="named by an id") as caught:
        read(path)
    (sample,) = read(path, **remedy(str(caught.value)))
    assert (sample.images[0].blob.label, sample.caption) == (name, "A red cat")
    assert sample.images[0].blob.read()


@pytest.mark.parametrize(
    ("record", "words"), record_cases("rows whose text may be false or a question")
)
def test_text_that_may_be_false_or_a_question_is_not_taken_for_a_caption(raw, record, words):
    path = raw(record)
    with pytest.raises(PackError, match=words):
        read(path)
    text = next(name for name in ("caption", "text", "prompt") if name in record)
    (sample,) = read(path, text_column=text)
    assert sample.caption == record[text]


# --- --map ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "words"), cases("maps that make no sense"))
def test_a_map_that_makes_no_sense_is_refused(raw, given, words):
    with pytest.raises(PackError, match=words):
        read(raw({"image": "0.jpg"}), map=given)
