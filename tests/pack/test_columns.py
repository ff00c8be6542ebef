"""Meaning of the columns of a table: turns, a caption, or a refusal that names the remedy."""

import base64
import json
import re
from functools import partial

import pytest

from datapipe import PackError
from datapipe.pack.input.raw_sample import RawSample
from datapipe.pack.notes import Notes
from datapipe.pack.readers.table import READER
from datapipe.text.conversation import conversation

from .cases import cases, record_cases, values
from .reading import read as read_inputs


@pytest.fixture
def raw(tmp_path, jpeg):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))

    def write(*rows):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


read = partial(read_inputs, READER)


def turns(sample):
    assert isinstance(sample, RawSample), sample
    return [(turn.role, turn.text, turn.trained) for turn in conversation(sample.record)]


ASKED, SAID = ("user", "What is it?", False), ("assistant", "A red cat.", True)


PAIRS = [
    *("question/answer", "Question/Answer", "query/response", "prefix/suffix"),
    *("instruction/output", "input/output", "prompt/response", "prompt/completion"),
    *("problem/solution", "question/multiple_choice_answer", "query/label", "text/label"),
]


@pytest.mark.parametrize("columns", PAIRS)
def test_a_question_and_its_answer_are_turns(raw, columns):
    record = {"image": "0.jpg"}
    record |= zip(columns.split("/"), ["What is it?", "A red cat."], strict=True)
    (sample,) = read(raw(record))
    assert turns(sample) == [ASKED, SAID]
    assert sample.caption is None
    assert len(sample.images) == 1
    assert sample.record == {**record, "messages": sample.record["messages"]}


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


def test_a_list_of_questions_with_choices_is_not_answered_by_letters(raw):
    asked = [{"question": "Which?", "choices": ["cat", "dog"], "answer": "B"}] * 2
    (sample,) = read(raw({"image": "0.jpg", "qa": asked}))
    assert sample.caption is None
    assert not conversation(sample.record)


def test_images_named_without_their_extension_are_found(raw):
    notes = Notes()
    first, second = read(raw(*({"image": n, "caption": f"A {n}"} for n in ("0", "1"))), notes=notes)
    assert (first.images[0].blob.name, first.caption) == ("0.jpg", "A 0")
    assert second.images[0].blob.read()
    assert notes.lines()[0].startswith("images are named without their extension")


def test_answers_of_several_people_are_no_choices(raw):
    record = {"image": "0.jpg", "question": "What?", "answer_1": "cat", "answer_2": "a cat"}
    with pytest.raises(PackError, match="'question'"):
        read(raw(record))


@pytest.mark.parametrize("as_list", [False, True])
def test_images_in_base64_are_known_by_what_they_hold(raw, jpeg, as_list):
    image = base64.b64encode(jpeg(1)).decode()
    record = {"picture_b64_str": [image] if as_list else image, "caption": "A red cat"}
    (sample,) = read(raw(record))
    assert sample.images[0].blob.read() == jpeg(1)


def test_a_column_of_json_is_not_taught_as_it_stands(raw):
    held = json.dumps({"question": "What is it?", "chosen": "A cat", "rejected": "A dog"})
    path = raw({"image": "0.jpg", "text": held})
    with pytest.raises(PackError, match="holds JSON with 'question', 'chosen', 'rejected'"):
        read(path)
    (sample,) = read(path, text_column="text")
    assert sample.caption == held


@pytest.mark.parametrize("nothing", ["nan", "None", "NULL", "N/A", " <NA> "])
def test_a_caption_that_says_there_is_none_is_none(raw, nothing):
    rows = ({"image": "0.jpg", "caption": caption} for caption in ("A cat", nothing))
    assert [sample.caption for sample in read(raw(*rows))] == ["A cat", None]


def test_a_text_alone_is_refused_where_its_ids_name_images_beside_it(raw, jpeg):
    path = raw({"ID": "scan_7", "Caption": "A lung"}, {"ID": "scan_8", "Caption": "A knee"})
    (path.parent / "train").mkdir()
    for number in (7, 8):
        (path.parent / "train" / f"scan_{number}.jpg").write_bytes(jpeg(number))
    with pytest.raises(PackError, match="images are here whose names hold the ids") as caught:
        read(path)
    first, second = read(path, **remedy(str(caught.value)))
    assert (first.caption, first.images[0].blob.read()) == ("A lung", jpeg(7))
    assert second.caption == "A knee"


def test_donuts_ground_truth_is_what_the_page_says(raw):
    menu = {"menu": [{"nm": "Tea", "price": "2"}]}
    asked = [{"question": "When?", "answer": answer} for answer in ("1998", "'98")]
    truths = {"gt_parse": menu}, {"gt_parse": {"text_sequence": "Dear Sir"}}, {"gt_parses": asked}
    rows = ({"file_name": "0.jpg", "ground_truth": json.dumps(truth)} for truth in truths)
    parsed, written, answered = (read(raw(row))[0] for row in rows)
    assert json.loads(parsed.caption) == menu
    assert written.caption == "Dear Sir"
    assert turns(answered) == [("user", "When?", False), ("assistant", "1998", True)]


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


def test_a_question_is_not_offered_as_a_caption(raw):
    with pytest.raises(PackError, match=r"--map 'image=image,user=question,assistant=COLUMN'"):
        read(raw({"image": "0.jpg", "question": "Why is it?"}))


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


def test_an_answer_that_is_empty_is_a_reject_by_name(raw):
    good = {"image": "0.jpg", "question": "Why?", "answer": "So."}
    _, line = read(raw(good, good | {"answer": ""}))
    assert "`answer`" in line.reason


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


def test_a_map_reaches_into_records_and_has_texts_of_its_own_and_templates(raw):
    record = {
        "files": [{"path": "1.jpg"}, {"path": "0.jpg"}],
        "meta": {"qa": {"q": "What is it?"}},
        "options": ["no", "A red cat."],
        "role": {"text": "Be short."},
    }
    given = "image=files[*].path,system=role.text,user=meta.qa.q,assistant=options[1]"
    (sample,) = read(raw(record), map=given)
    assert [image.blob.label for image in sample.images] == ["1.jpg", "0.jpg"]
    assert turns(sample) == [("system", "Be short.", False), ASKED, SAID]
    given = "image='0.jpg',user='What, in a word?',assistant={color} {kind}"
    (sample,) = read(raw({"color": "red", "kind": "cat"}), map=given)
    assert [text for _, text, _ in turns(sample)] == ["What, in a word?", "red cat"]
    assert sample.images[0].blob.label == "0.jpg"


@pytest.mark.parametrize(("given", "words"), cases("maps that make no sense"))
def test_a_map_that_makes_no_sense_is_refused(raw, given, words):
    with pytest.raises(PackError, match=words):
        read(raw({"image": "0.jpg"}), map=given)
