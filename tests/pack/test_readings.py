"""Choice of a reading of a folder where loose images are beside records or tars."""

import json

import pytest

from datapipe.errors import PackError
from datapipe.pack.input.loose_images import loose_images
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.input.survey import Survey

from .reading import choose_reader
from .record_files import write


def images(folder, count, text=None, start=0):
    """Files called as images, which is all that choosing looks at."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        (folder / f"{number:04d}.jpg").write_bytes(b"x")
        if text is not None:
            (folder / f"{number:04d}.txt").write_text(text)


def rows(path, names):
    write(path, [{"file_name": name, "text": "a caption"} for name in names])


def first(count):
    return [f"{number:04d}.jpg" for number in range(count)]


def test_a_tar_among_images_does_not_hide_them(tmp_path, make_tar):
    images(tmp_path, 1067)
    make_tar(tmp_path / "hopper.tar", [("hopper.jpg", b"x")])
    with pytest.raises(PackError) as caught:
        choose_reader(tmp_path)
    said = str(caught.value)
    assert "--format webdataset  1 tar with 1 sample, 1 image (or give " in said
    assert f"{tmp_path}/hopper.tar)" in said
    assert "--format folder      1,067 images, none with a text of the same stem" in said
    assert choose_reader(tmp_path, "folder").name == "folder"


def test_a_few_previews_beside_tars_do_not_stand_in_the_way(tmp_path, make_tar):
    make_tar(tmp_path / "0.tar", [(f"{n}.jpg", b"x") for n in range(100)])
    images(tmp_path / "docs", 1)
    assert choose_reader(tmp_path).name == "webdataset"
    images(tmp_path / "docs", 2)
    with pytest.raises(PackError, match=r"2 images, none .*or give .*/docs\)"):
        choose_reader(tmp_path)


@pytest.mark.parametrize("home", ["", "photos"])
def test_a_tar_that_lies_unpacked_beside_itself_is_no_data(tmp_path, make_tar, home):
    images(tmp_path / home, 3, "a caption")
    members = [(f"{n:04d}.jpg", b"x") for n in range(3)]
    make_tar(tmp_path / "photos.tar", members)
    assert choose_reader(tmp_path).name == "folder"
    (tmp_path / home / "0001.jpg").write_bytes(b"another")
    with pytest.raises(PackError, match="several ways"):
        choose_reader(tmp_path)


def test_a_row_of_metadata_does_not_hide_ten_pairs(tmp_path, jpeg):
    for number in range(10):
        (tmp_path / f"{number:04d}.jpg").write_bytes(jpeg(number))
        (tmp_path / f"{number:04d}.txt").write_text("a caption")
    rows(tmp_path / "metadata.jsonl", first(1))
    with pytest.raises(PackError) as caught:
        choose_reader(tmp_path)
    said = str(caught.value)
    assert "--format table   metadata.jsonl: 1 record, 1 named image is here" in said
    assert f"(or give {tmp_path}/metadata.jsonl)" in said
    assert "--format folder  10 images, 10 of them with a text of the same stem" in said


def test_stale_metadata_does_not_hide_pairs(tmp_path):
    images(tmp_path, 132, "a caption")
    rows(tmp_path / "metadata.jsonl", [f"old-{n}.jpg" for n in range(132)])
    with pytest.raises(PackError, match="132 named images are missing"):
        choose_reader(tmp_path)


def test_records_that_name_the_images_go_before_their_texts(tmp_path):
    images(tmp_path, 40, "a caption")
    rows(tmp_path / "metadata.jsonl", first(40))
    assert choose_reader(tmp_path).name == "table"
    images(tmp_path, 2, "another", start=40)  # 5 % of the records: two rejects would be allowed
    assert choose_reader(tmp_path).name == "table"
    images(tmp_path, 1, "another", start=42)
    with pytest.raises(PackError, match="several ways"):
        choose_reader(tmp_path)


@pytest.mark.parametrize(("named", "plain"), [(1, 10), (3, 90), (10, 1000)])
def test_records_of_some_of_many_images_are_meant_unless_they_are_too_few(tmp_path, named, plain):
    images(tmp_path / "train2017", named + plain)
    rows(tmp_path / "subset.jsonl", [f"train2017/{name}" for name in first(named)])
    assert choose_reader(tmp_path).name == "table"
    images(tmp_path / "train2017", 1, start=named + plain)
    with pytest.raises(PackError, match="several ways"):
        choose_reader(tmp_path)


def test_boxes_beside_images_are_no_captions_that_records_could_hide(tmp_path):
    images(tmp_path / "images", 30, "0 0.5 0.5 0.1 0.2\n3 0.1 0.1 0.1 0.1\n")
    rows(tmp_path / "metadata.jsonl", [f"images/{name}" for name in first(10)])
    assert loose_images(Survey(tmp_path)).pairs == 0
    assert choose_reader(tmp_path).name == "table"


@pytest.mark.parametrize("option", ["image_column", "key_from", "image_root"])
def test_an_option_of_records_says_that_records_are_meant(tmp_path, option):
    images(tmp_path, 10, "a caption")
    rows(tmp_path / "metadata.jsonl", first(1))
    value = tmp_path if option == "image_root" else "file_name"
    assert choose_reader(tmp_path, None, ReadOptions(**{option: value})).name == "table"


def llava(path, names):
    turns = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": "A cat"}]
    path.write_text(json.dumps([{"image": name, "conversations": turns} for name in names]))


def test_conversations_are_meant_where_a_table_beside_them_tells_of_the_same_images(tmp_path):
    images(tmp_path / "images", 4)
    rows(tmp_path / "metadata.jsonl", first(4))
    llava(tmp_path / "chat.json", first(4))
    assert choose_reader(tmp_path).name == "llava"


def test_several_formats_of_records_are_listed_with_their_counts(tmp_path):
    images(tmp_path, 3)
    rows(tmp_path / "metadata.jsonl", first(3))
    llava(tmp_path / "llava.json", first(1))
    with pytest.raises(PackError) as caught:
        choose_reader(tmp_path)
    said = str(caught.value)
    assert "--format llava   llava.json: 1 record, 1 named image is here" in said
    assert "--format table   metadata.jsonl: 3 records, 3 named images are here" in said


@pytest.mark.parametrize("home", ["", "images"])
@pytest.mark.parametrize("stale", ["table", "llava"])
def test_records_that_find_their_images_go_before_those_that_find_none(tmp_path, stale, home):
    images(tmp_path / home, 4)
    (tmp_path / "captions.json").write_text(json.dumps(dict.fromkeys(first(4), "A cat")))
    old = [f"old-{name}" for name in first(9)]
    if stale == "table":
        rows(tmp_path / "metadata.jsonl", old)
    else:
        llava(tmp_path / "llava.json", old)
    assert choose_reader(tmp_path).name == "captiondict"
    images(tmp_path / "old", 1)
    (tmp_path / "old" / "0000.jpg").rename(tmp_path / "old-0000.jpg")
    with pytest.raises(PackError, match="several ways"):  # one of them is here
        choose_reader(tmp_path)


def test_records_without_images_are_asked_about_beside_those_that_find_theirs(tmp_path):
    images(tmp_path, 4)
    (tmp_path / "captions.json").write_text(json.dumps(dict.fromkeys(first(4), "A cat")))
    turns = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "A cat"}]
    (tmp_path / "chat.json").write_text(json.dumps([{"conversations": turns}]))
    with pytest.raises(PackError, match="1 record, no images"):
        choose_reader(tmp_path)


VIDEO = {"conversations": [{"from": "human", "value": "<video>What?"}], "video": "a.mp4"}
TWICE = {"conversations": [{"from": "human", "value": "<image><image>?"}], "image": "0000.jpg"}
WORDS = {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]}
READ = {"question": "What is it?", "answer": "A dog.", "pdf": "a.pdf"}
SAID = "record has `{}`; only text and images are supported"
OF_VIDEO = f"{SAID.format('video')}; to pack its frames, add --video-frames fps=2,max=64"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([VIDEO] * 400, f"400 records, all rejected: {OF_VIDEO} (or give"),
        ([TWICE], "1 record, rejected: 2 <image> places for 1 images (or give"),
        ([VIDEO, VIDEO, TWICE],
         f"3 records, all rejected, for example: {OF_VIDEO} (or give"),
        ([WORDS, VIDEO], f"2 records, no images, 1 of them rejected: {OF_VIDEO} ("),
        ([READ, READ], f"2 records, all rejected: {SAID.format('pdf')} (or give"),
        ([WORDS, WORDS], "2 records, no images (or give"),
    ],
)  # fmt: skip
def test_records_that_would_all_be_rejected_say_why(tmp_path, records, expected):
    images(tmp_path, 3, "a caption")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    with pytest.raises(PackError) as caught:
        choose_reader(tmp_path)
    assert f"data.jsonl: {expected}" in str(caught.value)
