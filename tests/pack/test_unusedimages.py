"""Further images of a record: read where they are numbered, else named with a count."""

import base64
import json

import pytest

from datapipe import PackError, pack_dataset

from ..campaigns import rare
from .cases import record_cases
from .record_files import write as write_rows

ANSWER = {"role": "assistant", "content": "A cat."}
CONVERSATION = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": "A cat."}]
TEXTS = {
    "caption": {"caption": "A cat."},
    "question": {"question": "What?", "answer": "A cat."},
    "messages": {"messages": [{"role": "user", "content": "<image>What?"}, ANSWER]},
    "conversations": {"conversations": CONVERSATION},
    "texts": {"texts": [{"user": "What?", "assistant": "A cat."}]},
}
FORMS = ["struct", "bytes", "parquet of paths", "jsonl", "json", "base64"]


@pytest.fixture
def table(raw, jpeg):
    """Write a table of rows; images are given by their numbers, in one of `FORMS`."""

    def write(form, rows):
        def with_images(value):
            match value, form:
                case dict(), _:
                    return {name: with_images(item) for name, item in value.items()}
                case list(), _:
                    return [with_images(item) for item in value]
                case int(), "struct":
                    return {"bytes": jpeg(value), "path": None}
                case int(), "bytes":
                    return jpeg(value)
                case int(), "base64":
                    return base64.b64encode(jpeg(value)).decode()
                case int(), _:
                    (raw / f"{value}.jpg").write_bytes(jpeg(value))
                    return f"{value}.jpg"
            return value

        names = {"jsonl": "data.jsonl", "base64": "data.jsonl", "json": "data.json"}
        return write_rows(raw / names.get(form, "data.parquet"), with_images(rows))

    return write


@pytest.fixture
def packed(tmp_path, members):
    def pack(path, **options):
        report = pack_dataset(path, tmp_path / "out", workers=1, **options)
        return report, list(members(tmp_path / "out").values())

    return pack


def images(sample):
    return [data for name, data in sample.items() if name.endswith(("jpg", "png"))]


def named(report):
    return [note for note in report.notes if note.startswith("images in ")]


@pytest.mark.parametrize("name", ["mask", rare("depth"), rare("edited_image")])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("form", FORMS)
def test_an_image_of_another_use_is_named_with_a_count_in_every_form(
    table, packed, jpeg, form, text, name
):
    image = "images" if text == "texts" else "image"
    path = table(form, [{image: 0, name: 1, **TEXTS[text]}, {image: 2, name: None, **TEXTS[text]}])
    report, samples = packed(path)
    assert [images(sample) for sample in samples] == [[jpeg(0)], [jpeg(2)]]
    (note,) = named(report)
    assert note.startswith(f"images in `{name}` are not trained on")
    assert note.endswith(f": 1 record ({path.name}#0)")
    # A map would add an image that the text has no place for.
    has_places = text in ("messages", "conversations")
    assert (f" (--map 'image={image},image={name}," in note) == (not has_places)


@pytest.mark.parametrize("text", ["caption", "question", "texts", "unmarked"])
def test_the_map_of_the_note_takes_the_further_image(table, packed, jpeg, text):
    said = TEXTS.get(text) or {"messages": [{"role": "user", "content": "What?"}, ANSWER]}
    path = table("struct", [{"images" if text == "texts" else "image": 0, "depth": 1, **said}])
    (note,) = named(pack_dataset(path, path.parent.parent / "dry", dry_run=True))
    report, (sample,) = packed(path, map=note.split("'")[1])
    assert images(sample) == [jpeg(0), jpeg(1)]
    assert not named(report)


@pytest.mark.parametrize("form", ["struct", "jsonl"])
@pytest.mark.parametrize(
    ("columns", "text", "taken"),
    record_cases("numbered columns of images and texts"),
)
def test_numbered_images_are_input_where_the_text_has_as_many_places(
    table, packed, jpeg, form, columns, text, taken
):
    taken = json.loads(taken)
    said = TEXTS.get(text) or {"messages": [{"role": "user", "content": text}, ANSWER]}
    report, (sample,) = packed(table(form, [{columns[0]: 0, columns[1]: 1, **said}]))
    assert images(sample) == [jpeg(number) for number in taken]
    assert len(named(report)) == 2 - len(taken)


def test_the_map_of_the_note_is_quoted_for_a_shell(table, packed):
    given = "image=image,user='What is it?',assistant=caption"
    report, _ = packed(table("struct", [{"image": 0, "depth": 1, **TEXTS["caption"]}]), map=given)
    expected = given.replace("image=image", "image=image,image=depth")
    assert f'(--map "{expected}" takes them too)' in named(report)[0]


def test_too_many_places_name_the_further_image_and_the_map(table, packed, rejects, tmp_path):
    said = {"messages": [{"role": "user", "content": "<image><image>What?"}, ANSWER]}
    path = table("struct", [{"image": 0, "depth": 1, **said}])
    with pytest.raises(
        PackError, match=r"others are in `depth`, which --map '(.*)' takes"
    ) as caught:
        packed(path)
    given = str(caught.value).split("--map '")[1].split("'")[0]
    _, (sample,) = packed(path, map=given)
    assert len(images(sample)) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"file_name": "COCO_0.jpg"},
        {"image_path": "a/0.jpg"},
        {"id": "0.jpg"},
        {"url": "https://a.b/0.jpg"},
        {"caption_by": "someone"},
        {"emb": b"123"},
    ],
)
def test_columns_that_name_the_image_again_are_not_named(table, packed, more):
    report, _ = packed(table("struct", [{"image": 0, "caption": "A cat.", **more}]))
    assert not named(report)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"views": {"front": 1}}, "views.front"),
        ({"views": [{"front": 1}, {"front": 2}]}, "views[*].front"),
        ({"views": [1, 2]}, "views"),
    ],
)
def test_images_inside_of_other_columns_are_named_by_a_path_that_a_map_takes(
    table, packed, jpeg, more, path
):
    file = table("struct", [{"image": 0, "caption": "A cat.", **more}])
    (note,) = named(pack_dataset(file, file.parent.parent / "dry", dry_run=True))
    assert note.startswith(f"images in `{path}` are not trained on")
    report, (sample,) = packed(file, map=note.split("'")[1])
    assert images(sample)[:2] == [jpeg(0), jpeg(1)]
    assert not named(report)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_a_file_that_is_here_goes_before_bytes_of_another_name(
    table, packed, jpeg, encode, tmp_path, kind
):
    (tmp_path / "raw" / "a.jpg").write_bytes(jpeg(0))
    row = {"file_name": "a.jpg", "mask": encode(kind=kind), "caption": "A cat."}
    report, (sample,) = packed(table("bytes", [row]))
    assert images(sample) == [jpeg(0)]
    assert "`mask`" in named(report)[0]


# --- --map without an image ---------------------------------------------------------------------

ASKED = {"q1": "What?", "a1": "A cat."}
MAP = "user=q1,assistant=a1"


@pytest.mark.parametrize("form", FORMS)
def test_an_image_that_a_map_does_not_name_stays_an_image(table, packed, jpeg, form):
    report, (sample,) = packed(table(form, [{"image": 0, **ASKED}]), map=MAP)
    assert images(sample) == [jpeg(0)]
    assert "images: image (recognised by name; `image=` in the map leaves them out)" in report.notes
    assert report.shown[0].turns[0] == ("user", "<image>\nWhat?", False)


@pytest.mark.parametrize("further", ["image", "mask"])
@pytest.mark.parametrize("given", [{"map": "messages=chat"}, {}])
@pytest.mark.parametrize("as_tag", [False, True])
def test_images_in_mapped_turns_go_before_recognised_columns(
    table, packed, jpeg, tmp_path, further, given, as_tag
):
    (tmp_path / "raw" / "a.jpg").write_bytes(jpeg(0))
    parts = [{"type": "image", "image": "a.jpg"}, {"type": "text", "text": "What?"}]
    user = {"role": "user", "content": "<img>a.jpg</img>What?" if as_tag else parts}
    path = table("jsonl", [{"chat": json.dumps([user, ANSWER]), further: 1}])
    report, (sample,) = packed(path, **given)
    assert images(sample) == [jpeg(0)]
    assert named(report) == [f"images in `{further}` are not trained on: 1 record (data.jsonl#0)"]
