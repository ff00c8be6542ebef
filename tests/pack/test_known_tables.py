"""Columns as PixMo, CoSyn and OpenCLIP have them."""

import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import pack_dataset
from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.teaching import show

from .reading import choose_reader, read_all


@pytest.fixture
def table(tmp_path, jpeg):
    """Writes rows, with an image each, as Parquet."""

    def write(*rows):
        images = ({"image": {"bytes": jpeg(n), "path": None}} for n in range(len(rows)))
        held = [image | row for image, row in zip(images, rows, strict=True)]
        pq.write_table(pa.Table.from_pylist(held), tmp_path / "data.parquet")
        return tmp_path / "data.parquet"

    return write


def lessons(path):
    """Return the turns of each sample, as a report shows them."""
    read = read_all(choose_reader(path), path, ReadOptions())
    return [[(role, text) for role, text, _ in show(sample).turns] for sample in read]


@pytest.mark.parametrize("name", ["questions", "qa_pairs"])
def test_lists_of_questions_and_answers_in_one_column_are_turns(table, name, packed_records):
    pairs = {"question": ["What?", "Why?"], "explanation": ["x", "y"], "answer": ["A cat.", "So."]}
    one = {"question": ["Who?"], "explanation": ["z"], "answer": ["Ann."]}
    data = {"id": "a", "code": "print(1) and more", "data": "a table, of words"}
    path = table(*({name: held} | data for held in (pairs, one)))
    assert [[text for _, text in turns] for turns in lessons(path)] == [
        ["<image>\nWhat?", "A cat.", "Why?", "So."],
        ["<image>\nWho?", "Ann."],
    ]
    records = [record for record, _ in packed_records(path)]
    assert records[0]["messages"][1] == {"question": "Why?", "answer": "So."}
    assert records[0][name] == pairs


def test_lists_of_questions_that_are_empty_or_have_other_answers_are_rejected(
    table, rejects, tmp_path
):
    good = {"question": ["Who?"], "answer": ["Ann."]}
    held = [good, good | {"answer": []}, {"question": [], "answer": []}, None]
    pack_dataset(table(*({"questions": q} for q in held)), tmp_path / "out", max_rejects="100%")
    assert [line["reason"] for line in rejects(tmp_path / "out")] == [
        "`questions` has 1 in `question` and 0 in `answer`",
        "`questions` holds no question",
        "`questions` holds no question",
    ]


def test_messages_that_are_texts_alone_are_turns_where_the_answer_is_the_last(table):
    said = ["What?", "A cat.", "Why?", "It purrs."]
    asked = "[USER] What? [ASSISTANT] A cat. [USER] Why? [ASSISTANT]"
    path = table({"question": asked, "answer": " It purrs.", "messages": said})
    roles = ("user", "assistant") * 2
    assert lessons(path) == [list(zip(roles, ["<image>\nWhat?", *said[1:]], strict=True))]


# --- OpenCLIP -------------------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path, put):
    """Writes a table of images and other columns as CSV or TSV."""

    def write(name, separator, **columns):
        raw = put(tmp_path / "raw", {"0.jpg": 0, "1.jpg": 1})
        with (raw / name).open("w", newline="") as file:
            rows = csv.writer(file, delimiter=separator)
            rows.writerow(columns)
            rows.writerows(zip(*columns.values(), strict=True))
        return raw / name

    return write


FILES = ["0.jpg", "1.jpg"]


@pytest.mark.parametrize(("name", "separator"), [("a.csv", "\t"), ("a.tsv", "\t"), ("a.csv", ",")])
@pytest.mark.parametrize("titles", [["A cat, asleep", "A dog"], ["cat", "dog"]])
def test_a_title_beside_a_filepath_is_the_caption_as_openclip_has_it(
    pairs, name, separator, titles, packed
):
    path = pairs(name, separator, filepath=FILES, title=titles)
    assert [sample["txt"].decode() for sample in packed(path)] == titles


def test_the_only_text_of_a_table_is_proposed_as_its_caption(pairs):
    path = pairs("a.csv", ",", image=FILES, **{"my title": ["A cat", "A dog"]})
    with pytest.raises(PackError) as caught:
        lessons(path)
    assert "did you mean 'my title'? Give --text-column 'my title', or take the" in str(
        caught.value
    )
    assert "any of" not in str(caught.value)


def test_the_only_text_of_a_table_that_asks_is_proposed_with_its_answer(pairs):
    path = pairs("a.csv", ",", image=FILES, my_question=["Is it?", "Is it not?"])
    with pytest.raises(
        PackError, match=r"mean 'my_question'\? .* or --map 'image=image,user=my_qu"
    ):
        lessons(path)


def test_a_title_beside_another_text_is_not_taken_for_the_caption(pairs):
    path = pairs("a.csv", ",", filepath=FILES, title=["A cat", "A dog"], story=["Once upon", "a b"])
    with pytest.raises(PackError, match="any of the columns 'title', 'story'"):
        lessons(path)
