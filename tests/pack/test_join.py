"""Two tables that `--join` packs as one: images in one, texts in the other."""

import base64
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from datapipe import PackError, pack_dataset
from datapipe.cli.command import app

from .chats import llava
from .record_files import write

ROOT = Path(__file__).parents[2]
TEXTS = [("i2", "A dog."), ("i0", "A cat."), ("i2", "Asleep.")]


def texts(pairs=TEXTS):
    return [{"image_id": id, "caption": text} for id, text in pairs]


@pytest.fixture
def raw(tmp_path, jpeg):
    images = [{"image_id": f"i{n}", "image": {"bytes": jpeg(n), "path": None}} for n in range(3)]
    write(tmp_path / "raw" / "images.parquet", images)
    write(tmp_path / "raw" / "captions.csv", texts())
    return tmp_path / "raw"


@pytest.mark.parametrize("of_texts", ["t.csv", "t.tsv", "t.json", "t.jsonl", "t.parquet"])
@pytest.mark.parametrize("of_images", ["bytes.parquet", "base64.jsonl", "base64.json", "names.csv"])
def test_tables_of_every_format_are_joined(tmp_path, put, packed, jpeg, of_images, of_texts):
    raw, names = tmp_path / "raw", [f"images/{number}.jpg" for number in range(3)]
    if of_images == "names.csv":
        put(raw, {name: number for number, name in enumerate(names)})
    cells = {
        "names": names,
        "base64": [base64.b64encode(jpeg(number)).decode() for number in range(3)],
        "bytes": [jpeg(number) for number in range(3)],
    }[of_images.partition(".")[0]]
    write(raw / of_images, [{"image_id": n, "image": cell} for n, cell in enumerate(cells)])
    write(raw / of_texts, texts([(2, "A dog."), (0, "A cat.")]))
    samples = packed(raw, join="image_id")
    assert [sample["jpg"] for sample in samples] == [jpeg(2), jpeg(0)]
    assert [sample["txt"] for sample in samples] == [b"A dog.", b"A cat."]


def test_an_interrupted_join_is_finished_with_the_same_bytes(raw, tmp_path, contents):
    write(raw / "captions.csv", texts([*TEXTS, ("i9", "No image."), *TEXTS]))
    options = {"join": "image_id", "shard_size": 1, "workers": 1}
    pack_dataset(raw, tmp_path / "whole", **options, max_rejects=1)
    with pytest.raises(PackError, match="rejected"):
        pack_dataset(raw, tmp_path / "out", **options, max_rejects=0)
    pack_dataset(raw, tmp_path / "out", **options, max_rejects=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_dry_run_counts_the_same_and_leaves_nothing(raw, temporary):
    report = pack_dataset(raw, dry_run=True, join="image_id")
    assert (report.samples, report.rejected) == (3, 0)
    assert list(temporary.iterdir()) == []


def test_the_command_joins_as_the_refusal_says(raw, tmp_path, members):
    (raw / "images.parquet").rename(raw / "images-00000-of-00001.parquet")
    command = ["pack", str(raw), str(tmp_path / "out")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "add --join 'image_id'" in refused.stderr
    joined = CliRunner().invoke(app, [*command, "--join", "image_id"])
    assert "captions.csv is joined with the images of images-*" in joined.output
    packed = members(tmp_path / "out").values()
    assert [sample["txt"].decode() for sample in packed] == [text for _, text in TEXTS]


@pytest.mark.parametrize("named", [True, False])  # whether the conversations name images, too
@pytest.mark.parametrize(
    ("key", "first", "hint"),
    [("id", "i", True), ("image_id", "", True), ("id", "x", False), ("id", "", False)],
)  # ids of the images; row numbers that are ids; ids of others; row numbers of each
def test_a_join_is_named_where_ids_match_those_of_conversations(
    tmp_path, jpeg, named, key, first, hint
):
    ids = [f"{first}{n}" for n in range(3)]
    chats = [llava("<image>What?", **{key: id}) for id in ids]
    if named:
        chats = [chat | {"image": f"{chat[key]}.jpg"} for chat in chats]
    rows = [{key: id.replace("x", "i"), "image": {"bytes": jpeg(0)}} for id in ids]
    write(tmp_path / "raw" / "images.parquet", rows)
    write(tmp_path / "raw" / "llava.json", chats)
    said = f"; if the two tables complete each other by '{key}', add --join '{key}' (see docs"
    if named:
        notes = pack_dataset(tmp_path / "raw", dry_run=True).notes
        (note,) = [note for note in notes if "of records that were not taken" in note]
    else:
        with pytest.raises(PackError, match="in several ways") as caught:
            pack_dataset(tmp_path / "raw", dry_run=True)
        note = str(caught.value)
    assert (said in note, "--join" in note) == (hint, hint)


def test_no_join_of_a_table_with_itself_is_named(tmp_path, jpeg):
    said = llava("<image>What?")["conversations"]
    image = {"bytes": jpeg(0), "path": None}
    rows = [
        {"id": f"i{n}", "image": image, "conversations": said, "messages": said} for n in (0, 1)
    ]
    write(tmp_path / "raw" / "a.parquet", rows)
    with pytest.raises(PackError, match=r"in several ways.*\n.*chat.*\n.*llava.*\n.*elsewhere$"):
        pack_dataset(tmp_path / "raw", dry_run=True)


@pytest.mark.parametrize("shared", [True, False])
def test_a_join_by_columns_of_two_names_is_named_where_ids_match(tmp_path, jpeg, shared):
    first = "n" if shared else "x"
    images = [{"id": f"n{n}", "image": {"bytes": jpeg(n)}} for n in range(3)]
    words = {"question": "What is it?", "answer": "A cat."}
    asked = [{"id": f"q{n}", "imageId": f"{first}{n}", **words} for n in range(3)]
    write(tmp_path / "raw" / "images" / "a.parquet", images)
    write(tmp_path / "raw" / "questions" / "b.parquet", asked)
    with pytest.raises(PackError) as caught:
        pack_dataset(tmp_path / "raw", dry_run=True)
    assert ("add --join 'imageId=id'" in str(caught.value)) == shared
    if shared:
        page, anchor = re.search(r"(docs/[^)#]+)#([^)]+)", str(caught.value)).groups()
        titles = re.findall(r"(?m)^### (.*)$", (ROOT / page).read_text("utf-8"))
        titles = [re.sub(r"[^\w ]", "", title).lower().replace(" ", "-") for title in titles]
        assert anchor in titles
