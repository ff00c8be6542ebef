"""Columns as PixMo, CoSyn and OpenCLIP have them."""

import pytest

from datapipe import pack_dataset
from datapipe.errors import PackError
from datapipe.pack.teaching import show

from .reading import choose_reader, read
from .record_files import write, write_csv


@pytest.fixture
def table(raw, jpeg):
    """Writes rows, with an image each, as Parquet."""

    def table(*rows):
        held = [{"image": {"bytes": jpeg(n), "path": None}} | row for n, row in enumerate(rows)]
        return write(raw / "data.parquet", held)

    return table


def lessons(path):
    """Return the turns of each sample, as a report shows them."""
    samples = read(choose_reader(path), path)
    return [[(role, text) for role, text, _ in show(sample).turns] for sample in samples]


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
def pairs(raw, put):
    """Writes a table of two images and what is said of them as CSV or TSV."""

    def pairs(name, *said, mark=","):
        put(raw, {"0.jpg": 0, "1.jpg": 1})
        write_csv(raw / name, [{"filepath": f"{n}.jpg"} | row for n, row in enumerate(said)], mark)
        return raw / name

    return pairs


@pytest.mark.parametrize(("name", "mark"), [("a.csv", "\t"), ("a.tsv", "\t"), ("a.csv", ",")])
@pytest.mark.parametrize("titles", [["A cat, asleep", "A dog"], ["cat", "dog"]])
def test_a_title_beside_a_filepath_is_the_caption_as_openclip_has_it(
    pairs, name, mark, titles, packed
):
    path = pairs(name, *({"title": title} for title in titles), mark=mark)
    assert [sample["txt"].decode() for sample in packed(path)] == titles


@pytest.mark.parametrize(
    ("said", "proposed"),
    [
        # The only text of a table, and one that asks.
        (
            {"my title": "A cat"},
            r"mean 'my title'\? Give --text-column 'my title', or take the",
        ),
        ({"my_question": "Is it?"}, r"mean 'my_question'\? .* --map 'image=filepath,user=my_qu"),
        ({"title": "A cat", "story": "Once upon"}, "any of the columns 'title', 'story'"),
    ],
)
def test_what_may_be_the_text_of_a_table_is_proposed(pairs, said, proposed):
    with pytest.raises(PackError, match=proposed) as caught:
        lessons(pairs("a.csv", said, {column: f"{text} too" for column, text in said.items()}))
    assert ("any of" in str(caught.value)) == (len(said) > 1)
