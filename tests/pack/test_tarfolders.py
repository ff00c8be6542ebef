"""Tars of other people whose texts are elsewhere than in a member `txt`."""

import json
import subprocess

import pytest

from datapipe import PackError, pack_dataset

NAMES = [f"{number}.jpg" for number in range(6)]
LINES = "".join(f"{name}\ta photograph\n" for name in NAMES).encode()
ROWS = "".join(json.dumps({"file_name": n, "text": "a cat"}) + "\n" for n in NAMES).encode()


@pytest.fixture
def images(jpeg):
    """Members of a tar: six images in a folder."""

    def make(folder):
        return [(f"{folder}/{name}", jpeg(number)) for number, name in enumerate(NAMES)]

    return make


def turns(user, assistant):
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("question", "answer"),
        ("query", "response"),
        ("prompt", "completion"),
        ("instruction", "output"),
        ("Problem", "solution"),
    ],
)
def test_a_question_and_its_answer_become_turns(tmp_path, make_tar, packed, jpeg, asked, answered):
    texts = [(f"a.{answered}.txt", b"A cat.\n"), (f"a.{asked}.txt", b"What?\n")]
    more = [("a.json", b'{"x": 1}'), ("a.ocr.txt", b"STOP")]
    (sample,) = packed(make_tar(tmp_path / "x.tar", [("a.jpg", jpeg(0)), *texts, *more]))
    assert json.loads(sample.pop("json")) == {"x": 1, "messages": turns("What?", "A cat.")}
    assert sample == {"jpg": jpeg(0), "ocr.txt": b"STOP"}


@pytest.mark.parametrize(
    ("texts", "record", "kept"),
    [
        ({"txt": "plain", "question.txt": "What?"}, None, {"txt", "question.txt"}),
        ({"alt.txt": "alt"}, {"x": 1}, {"txt", "json"}),
        ({"alt.txt": "alt"}, {"caption": "of the JSON"}, {"alt.txt", "json"}),
        ({"question.txt": "What?", "answer.txt": "A."}, {"messages": turns("1+1?", "2")},
         {"question.txt", "answer.txt", "json"}),
        ({"x.txt": "1", "y.txt": "2"}, {"messages": turns("1+1?", "2")},
         {"x.txt", "y.txt", "json"}),
    ],
)  # fmt: skip
def test_what_goes_before_texts_with_names(tmp_path, make_tar, packed, jpeg, texts, record, kept):
    members = [("a.jpg", jpeg(0)), *((f"a.{ext}", text.encode()) for ext, text in texts.items())]
    if record:
        members.append(("a.json", json.dumps(record).encode()))
    (sample,) = packed(make_tar(tmp_path / "x.tar", members))
    assert sample.keys() == {"jpg", *kept}
    if record:
        assert json.loads(sample["json"]) == record


def test_a_map_goes_before_texts_with_names(tmp_path, make_tar, packed, jpeg):
    texts = [("a.x.txt", b"1"), ("a.y.txt", b"2"), ("a.json", b'{"said": "A cat."}')]
    path = make_tar(tmp_path / "x.tar", [("a.jpg", jpeg(0)), *texts])
    (sample,) = packed(path, map="caption=said")
    assert sample.keys() == {"jpg", "txt", "json", "x.txt", "y.txt"}
    assert sample["txt"] == b"A cat."


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"en.txt": "a", "de.txt": "b"}, "what is to be learnt of its texts (`en.txt`, `de.txt`)"),
        ({"question.txt": "What?"}, "what is to be learnt of its texts (`question.txt`)"),
        ({"question.txt": "What?", "answer.txt": " \n"}, "`answer.txt`, one of its two turns, is"),
        ({"question.txt": "What?", "answer.txt": "A.", "json": "[1]"}, "its JSON is no object"),
    ],
)
def test_texts_that_cannot_be_told_are_rejected(
    tmp_path, make_tar, packed, jpeg, rejects, texts, reason
):
    members = [(f"a.{ext}", text.encode()) for ext, text in texts.items()]
    packed(make_tar(tmp_path / "x.tar", [("a.jpg", jpeg(0)), *members, ("b.txt", b"b")]))
    (reject,) = rejects(tmp_path / "out")
    assert reject["source"] == "x.tar:a"
    assert reject["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("texts", "how"),
    [
        ([("captions.txt", LINES)], "the names in captions.txt"),
        ([("captions.csv", b"image,caption\n" + LINES.replace(b"\t", b","))], "captions.csv"),
        ([("in/metadata.jsonl", ROWS)], "the names in in/metadata.jsonl"),
        ([("captions.json", b"[" + ROWS.strip().replace(b"\n", b",") + b"]")], "captions.json"),
        (
            [(f"captions/{number}.txt", b"a cat") for number in range(6)],
            "their names in another folder (in/0 and captions/0)",
        ),
    ],
)
def test_a_folder_in_a_tar_is_refused_with_the_command_that_unpacks_it(
    tmp_path, make_tar, images, texts, how
):
    path = make_tar(tmp_path / "x.tar", [*images("in"), *texts])
    with pytest.raises(PackError, match=r"x\.tar: the texts of this tar belong to") as error:
        pack_dataset(path, tmp_path / "out")
    assert f"{how}, which tars do not say; unpack it with `mkdir" in str(error.value)
    subprocess.run(str(error.value).split("`")[1], shell=True, check=True)
    raw = tmp_path / "x"
    assert str(error.value).endswith(f"and give {raw}")
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.teaching.with_text) == (6, 6)


@pytest.mark.parametrize(
    "texts",
    [
        [("list.txt", "\n".join(NAMES).encode())],
        [("md5sums.txt", LINES)],
        [("a.txt", b"0.jpg shows a cat"), ("b.txt", b"a text alone")],
        [("alone.txt", b"a text alone"), ("x/9.txt", b"another")],
        [("in/0.cls", b"1"), ("data.txt", b'{"file_name": "elsewhere.jpg"}')],
        # Most images have a text: the others, and the texts alone, are what they seem to be.
        [*((f"in/{n}.txt", b"text") for n in range(4)), ("x/4.txt", b"4"), ("captions.txt", LINES)],
    ],
)
def test_texts_among_images_are_packed(tmp_path, make_tar, images, texts):
    path = make_tar(tmp_path / "x.tar", [*images("in"), *texts])
    report = pack_dataset(path, tmp_path / "out", max_rejects=0)
    assert report.images == 6


def test_what_macos_adds_is_no_data(tmp_path, make_tar, packed, jpeg):
    litter = [("./a/._0.jpg", b"Mac"), ("./__MACOSX/a/0.jpg", b"Mac"), ("./a/.DS_Store", b"Mac")]
    path = make_tar(tmp_path / "x.tar", [*litter, ("./a/0.jpg", jpeg(0)), ("./a/0.txt", b"a cat")])
    report = pack_dataset(path, tmp_path / "out", max_rejects=0)
    assert (report.samples, report.rejected, report.teaching.with_text) == (1, 0, 1)
