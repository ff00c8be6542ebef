"""Questions about images: joined with their answers, all of an image in one sample."""

import json
import tracemalloc

import pytest

from datapipe import PackError, make_loader, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions
from datapipe.pack.readers.vqa import READER
from datapipe.text.conversation import conversation

from .reading import choose_reader, read_all, recognises

QUESTIONS = [
    {"image_id": 262148, "question": "Where is he looking?", "question_id": 262148000},
    {"image_id": 393225, "question": "Is this a creamy soup?", "question_id": 393225001},
    {"image_id": 262148, "question": "What are they doing?", "question_id": 262148001},
]
NAME = "v2_OpenEnded_mscoco_val2014_questions.json"
ANSWERS_NAME = "v2_mscoco_val2014_annotations.json"


def annotation(question, *answers, best=None, image=0):
    given = [
        {"answer": text, "answer_confidence": "yes", "answer_id": number}
        for number, text in enumerate(answers, 1)
    ]
    found = {"question_type": "what is", "answers": given, "image_id": image}
    found |= {"answer_type": "other", "question_id": question}
    return found if best is None else found | {"multiple_choice_answer": best}


ANNOTATIONS = [
    annotation(393225001, "no", "no", "yes", best="no"),
    annotation(262148001, "spectating", "watching", "watching"),
    annotation(262148000, "down", "at table", "table", best="down"),
]


def of_questions(questions=QUESTIONS, subtype="val2014"):
    head = {"info": {"version": "2.0"}, "task_type": "Open-Ended", "data_type": "mscoco"}
    return head | {"license": {}, "data_subtype": subtype, "questions": questions}


def of_annotations(annotations=ANNOTATIONS, subtype="val2014"):
    # VQA writes the subtype in front, Python's old dictionaries wrote it anywhere.
    return {"info": {"version": "2.0"}, "annotations": annotations, "data_subtype": subtype}


coco_name = "COCO_val2014_{:012d}.jpg".format
PLACES = [f"val2014/{coco_name(image)}" for image in (262148, 393225)]


@pytest.fixture
def make(tmp_path, put):
    """Writes JSON files and images."""

    def make(files, images):
        return put(tmp_path / "raw", files | {name: n for n, name in enumerate(images)})

    return make


@pytest.fixture
def make_vqa(make):
    def make_vqa(questions=QUESTIONS, annotations=ANNOTATIONS, folder="val2014", name=coco_name):
        images = [f"{folder}/{name(image)}" for image in (262148, 393225)]
        files = {NAME: of_questions(questions), ANSWERS_NAME: of_annotations(annotations)}
        return make(files, images)

    return make_vqa


def read(raw, **options):
    return list(read_all(READER, raw, ReadOptions(**options)))


def turns_of(taken):
    samples = [sample for sample in taken if isinstance(sample, RawSample)]
    return [[turn[:2] for turn in conversation(sample.record)] for sample in samples]


TURNS = [
    [
        ("user", "Where is he looking?"), ("assistant", "down"),
        ("user", "What are they doing?"), ("assistant", "watching"),
    ],
    [("user", "Is this a creamy soup?"), ("assistant", "no")],
]  # fmt: skip


def test_vqa_v2_becomes_conversations_with_one_image(tmp_path, make_vqa, members, jpeg):
    raw = make_vqa()
    assert choose_reader(raw) is choose_reader(raw / NAME) is READER
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.images, report.rejected) == (2, 2, 0)
    assert f"answers are read from {ANSWERS_NAME}" in report.notes
    first, second = members(tmp_path / "out").values()
    assert (first["jpg"], second["jpg"]) == (jpeg(0), jpeg(1))
    record = json.loads(first["json"])
    assert record["image_id"] == 262148
    assert [m["content"] for m in record["messages"]] == [text for _, text in TURNS[0]]
    assert record["questions"][1] == {
        "question_id": 262148001,
        "question_type": "what is",
        "answer_type": "other",
        "answers": ANNOTATIONS[1]["answers"],
    }
    batch = next(iter(make_loader(tmp_path / "out", batch_size=2, shuffle=False)))
    assert batch["text"][1] == "user: Is this a creamy soup?\nassistant: no"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("val2014", coco_name),
        ("images/val2014", coco_name),
        ("images", "{:012d}.jpg".format),
        ("coco/val2017", "{:012d}.jpg".format),
        ("images", "{}.jpg".format),
        (".", "{}.png".format),
    ],
)
def test_images_are_found_by_the_names_that_coco_gives_them(make_vqa, folder, name):
    samples = read(make_vqa(folder=folder, name=name))
    assert [sample.images[0].blob.name for sample in samples] == [name(262148), name(393225)]
    assert all(sample.images[0].blob.read() for sample in samples)


@pytest.mark.parametrize(
    ("questions", "answers"),
    [
        (f"questions/{NAME}", f"annotations/{ANSWERS_NAME}"),
        (f"Questions/{NAME}", f"Answers/{ANSWERS_NAME}"),
        (NAME, f"annotations/{ANSWERS_NAME}"),
        (f"vqa/{NAME}", ANSWERS_NAME),
        (f"vqa/{NAME}", "vqa/my_answers.json"),
        ("OpenEnded_mscoco_val2014_questions.json", "mscoco_val2014_annotations.json"),
    ],
)
def test_answers_are_found_where_datasets_keep_them(make, questions, answers):
    raw = make({questions: of_questions(), answers: of_annotations()}, PLACES)
    assert turns_of(read(raw)) == turns_of(read(raw / questions)) == TURNS


def test_answers_of_another_split_are_not_taken(make, make_vqa):
    raw = make_vqa()
    other = of_annotations([annotation(262148000, "wrong")], "train2014")
    make({"v2_mscoco_train2014_annotations.json": other, "mine.json": of_annotations()}, [])
    assert turns_of(read(raw)) == TURNS
    (raw / ANSWERS_NAME).rename(raw / "yours.json")
    with pytest.raises(PackError, match=r"may be in any of .*mine.json, .*yours.json; leave"):
        read(raw)


def test_questions_alone_are_refused_with_the_name_of_what_is_missing(make):
    raw = make({NAME: of_questions()}, PLACES)
    with pytest.raises(PackError, match=f"without answers.*put {ANSWERS_NAME} there or into"):
        read(raw)


def test_answers_alone_are_refused(make):
    raw = make({ANSWERS_NAME: of_annotations()}, PLACES)
    assert choose_reader(raw) is READER
    with pytest.raises(PackError, match="holds answers; give the file of their questions"):
        read(raw)


def test_questions_of_a_test_split_beside_others_are_left_out_and_said(make, make_vqa):
    raw = make_vqa()
    test = "v2_OpenEnded_mscoco_test2015_questions.json"
    make({test: of_questions(subtype="test2015")}, [])
    options = ReadOptions()
    assert len(list(read_all(READER, raw, options))) == 2
    assert f"{test} is left out: there are no answers to it" in options.notes.lines()


def test_several_files_of_questions_are_not_mixed(make, make_vqa):
    raw = make_vqa()
    make({"train_questions.json": of_questions(subtype="train2014"),
          "train_annotations.json": of_annotations(subtype="train2014")}, [])  # fmt: skip
    with pytest.raises(PackError, match=r"several files of questions.*--include"):
        read(raw)
    assert turns_of(read(raw, include="v2*")) == TURNS


def test_what_makes_no_sense_is_rejected_by_name(tmp_path, make_vqa, rejects):
    unanswered = {"image_id": 262148, "question": "And?", "question_id": 5}
    broken = [unanswered, [1], {"image_id": 1, "question_id": 2}, {"question": "?"}, QUESTIONS[0]]
    more = [annotation(99, "x"), {"answers": []}, annotation(262148000, "again")]
    raw = make_vqa([*QUESTIONS, *broken], [*ANNOTATIONS, *more])
    report = pack_dataset(raw, tmp_path / "out", max_rejects=20)
    assert (report.samples, report.rejected) == (2, 8)
    lines = {line["source"]: line["reason"] for line in rejects(tmp_path / "out")}
    assert lines == {
        f"{NAME}: questions[3]": "question has no answer",
        f"{NAME}: questions[4]": "entry is a list, not an object",
        f"{NAME}: questions[5]": "entry has no `question`",
        f"{NAME}: questions[6]": "question names no image (`image_id`)",
        f"{NAME}: questions[7]": "a question before it has the same id 262148000",
        f"{ANSWERS_NAME}: annotations[3]": "none of the questions has the id 99",
        f"{ANSWERS_NAME}: annotations[4]": "annotation has no `question_id`",
        f"{ANSWERS_NAME}: annotations[5]": (
            "an annotation before it answers the same question 262148000"
        ),
    }


def test_of_answers_given_as_often_the_first_is_taken(make_vqa):
    raw = make_vqa(QUESTIONS[:1], [annotation(262148000, "a", "b", "b", "a", "c")])
    assert turns_of(read(raw)) == [[("user", "Where is he looking?"), ("assistant", "a")]]


# --- other datasets ---------------------------------------------------------------------------


def test_answers_that_are_indices_of_choices_are_not_taken_for_answers(make):
    problem = {"question": "Which?", "choices": ["a", "b"], "answer": 0, "image": "image.png"}
    raw = make({"problems.json": {"1": problem}}, ["images/1/image.png"])
    assert not recognises(READER, raw, ReadOptions())


# --- large files --------------------------------------------------------------------------------


@pytest.mark.campaign
def test_memory_stays_flat_however_many_questions(tmp_path):
    many = 10_000
    questions = [
        {"image_id": number % 500, "question": "what is this? " + "x" * 100, "question_id": number}
        for number in range(many)
    ]
    annotations = [annotation(number, *"abcdefghij") for number in range(many)]
    (tmp_path / NAME).write_text(json.dumps(of_questions(questions)))
    (tmp_path / ANSWERS_NAME).write_text(json.dumps(of_annotations(annotations)))
    (tmp_path / coco_name(0)).touch()
    del questions, annotations
    tracemalloc.start()
    try:
        asked = sum(len(s.record["questions"]) for s in read_all(READER, tmp_path, ReadOptions()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert asked == many
    assert peak < 8 * 2**20
