"""COCO captions: images and annotations are joined by id in flat memory, and nothing is lost."""

import json
import tracemalloc

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import ReadOptions, Reject
from datapipe.pack.readers.caption_files import COCO as READER

from .cases import cases, record_cases
from .coco_files import ANNOTATIONS, HEAD, IMAGES, image
from .layouts.table import Has
from .reading import choose_reader, estimate, read_all, recognises


def read(raw, **options):
    """Return the inputs with the first caption of each image, unless another mode is given."""
    return list(read_all(READER, raw, ReadOptions(**{"captions": "first"} | options)))


FIRST = ["A woman cutting a cake.", "A street at night.", "A child with an umbrella."]
RECORD = IMAGES[0] | {
    "captions": ["A woman cutting a cake.", "Größe \U0001f600\n", "A third one."],
    "annotations": [{"id": 49}, {"id": 38}, {"id": 53}],
}


def test_a_dataset_as_coco_unpacks_gives_a_sample_for_each_caption(
    tmp_path, make_coco, members, jpeg
):
    report = pack_dataset(make_coco(), tmp_path / "out")
    assert (report.samples, report.rejected, report.captions_unused) == (5, 0, 0)
    assert any("a sample for each" in note for note in report.notes)
    *first, second, last = members(tmp_path / "out").values()
    assert [sample["jpg"] for sample in first] == [jpeg(0)] * 3
    assert (second["jpg"], last["jpg"]) == (jpeg(1), jpeg(2))
    assert [sample["txt"].decode() for sample in first] == RECORD["captions"]
    assert [json.loads(sample["json"]) for sample in first] == [RECORD] * 3
    assert last["txt"].decode() == "A child with an umbrella."
    assert json.loads(last["json"])["captions"] == ["A child with an umbrella.", ""]


def test_the_samples_of_an_image_have_sources_of_their_own(make_coco):
    raw = make_coco()
    numbers = ("522418", "522418:1", "522418:2", "318219", "184613")
    assert [sample.source for sample in read(raw, captions="all")] == [
        f"captions_val2017.json#{number}" for number in numbers
    ]
    assert [estimate(READER, raw, ReadOptions(captions=m)) for m in ("all", "first")] == [6, 3]


@pytest.mark.parametrize(("captions", "unused"), [("first", 2), ("join", 0)])
def test_captions_are_joined_or_the_first_alone_is_taken_on_request(
    tmp_path, make_coco, members, captions, unused
):
    report = pack_dataset(make_coco(), tmp_path / "out", captions=captions)
    assert (report.samples, report.captions_unused) == (3, unused)
    first, *_ = members(tmp_path / "out").values()
    taken = RECORD["captions"][: 1 if unused else None]
    assert first["txt"].decode() == "\n".join(taken)
    assert json.loads(first["json"]) == RECORD


@pytest.mark.parametrize(
    "order",
    [
        ("info", "images", "licenses", "annotations"),
        ("annotations", "images", "info"),
        ("licenses", "annotations", "info", "images"),
    ],
)
@pytest.mark.parametrize("dump", [{}, {"indent": 2, "ensure_ascii": False}])
def test_samples_follow_images_whatever_the_order_of_members(make_coco, order, dump):
    raw = make_coco(order=order, **dump)
    assert choose_reader(raw) is READER
    samples = read(raw)
    assert [sample.source for sample in samples] == [
        f"captions_val2017.json#{entry['id']}" for entry in IMAGES
    ]
    assert [sample.caption for sample in samples] == FIRST


@pytest.mark.parametrize(
    ("id", "given"), [(522418, "522418"), (522418, 522418.0), ("a/b ü", "a/b ü")]
)
def test_ids_may_be_text_and_be_written_in_another_way(make_coco, id, given):
    raw = make_coco([image(522418, id=id)], [{"id": "x", "image_id": given, "caption": "c"}])
    (sample,) = read(raw)
    assert (sample.source, sample.caption) == (f"captions_val2017.json#{id}", "c")


@pytest.mark.parametrize(
    ("field", "key"), [(None, ""), ("id", "522418"), ("file_name", "000000522418.jpg")]
)
def test_a_key_is_taken_from_a_field_of_the_image(make_coco, field, key):
    assert read(make_coco(), key_from=field)[0].key == key


def test_an_image_without_a_caption_or_the_field_of_the_key_is_rejected_by_name(make_coco):
    images = [image(522418, name="a"), image(318219, name="b"), image(184613)]
    annotations = [*ANNOTATIONS[:2], {**ANNOTATIONS[-1], "caption": " "}]
    sample, silent, unnamed = read(make_coco(images, annotations), key_from="name")
    assert sample.key == "a"
    source = "captions_val2017.json#318219"
    assert silent == Reject(source, "image has no caption", "MissingMember")
    assert (unnamed.source, unnamed.error) == ("captions_val2017.json#184613", "MissingMember")


# --- what is wrong with one input -------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "error", "reason"), record_cases("images of COCO that make no sense")
)
def test_an_image_that_makes_no_sense_is_rejected(make_coco, entry, error, reason):
    *samples, line = read(make_coco([*IMAGES, entry]))
    assert [sample.caption for sample in samples] == FIRST
    assert line == Reject("captions_val2017.json: images[3]", Has(reason), error)


@pytest.mark.parametrize(
    ("entry", "error", "reason"), record_cases("annotations of COCO that make no sense")
)
def test_an_annotation_that_makes_no_sense_is_rejected_behind_the_images(
    make_coco, entry, error, reason
):
    *samples, first, last = read(make_coco(annotations=[entry, *ANNOTATIONS, entry]))
    assert [sample.caption for sample in samples] == FIRST
    for line, place in ((first, 0), (last, 7)):
        source = f"captions_val2017.json: annotations[{place}]"
        assert line == Reject(source, Has(reason), error)


# --- which file, which folder of images -------------------------------------------------------


@pytest.mark.parametrize(("name", "folder"), cases("places of COCO's captions and images"))
def test_images_are_found_where_datasets_keep_them(make_coco, name, folder):
    raw = make_coco(name=name, folder=folder)
    for given in (raw, raw / name, (raw / name).parent):
        assert choose_reader(given) is READER
        sample = read(given)[0]
        assert sample.images[0].blob.read()


def test_several_files_of_captions_are_refused_by_name(make_coco):
    make_coco()
    raw = make_coco(name="annotations/captions_train2017.json", folder="train2017")
    with pytest.raises(
        PackError,
        match=r"\(annotations/captions_train2017.json, annotations/captions_val2017.json\); give",
    ):
        read(raw)
    assert len(read(raw / "annotations" / "captions_train2017.json")) == 3


INSTANCES = [{"id": 1, "image_id": 522418, "bbox": [1, 2, 3, 4], "category_id": 1}]


def test_files_of_boxes_beside_the_captions_do_not_matter(make_coco):
    make_coco(name="annotations/instances_val2017.json", annotations=INSTANCES)
    assert len(read(make_coco())) == 3


@pytest.mark.parametrize("give", ["folder", "file"])
@pytest.mark.parametrize(
    "annotations",
    [INSTANCES, [], [{"id": 1, "image_id": 522418, "caption": None}], [{"caption": 1}]],
)
def test_a_file_without_captions_is_refused_as_such(make_coco, annotations, give):
    raw = make_coco(name="annotations/instances_val2017.json", annotations=annotations)
    given = raw if give == "folder" else raw / "annotations" / "instances_val2017.json"
    assert choose_reader(given) is READER
    with pytest.raises(PackError, match=r"holds no captions.*captions_\*.json.*--format folder"):
        read(given)


def test_a_folder_without_any_is_refused(raw):
    (raw / "a.json").write_text('{"images": 5}')
    assert not recognises(READER, raw)
    with pytest.raises(PackError, match=r"no .json file here or in .*annotations.* holds COCO's"):
        read(raw)


def test_sidecars_of_images_and_other_json_are_not_taken_for_it(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 2)
    (raw / "000.json").write_text(json.dumps(HEAD | {"images": IMAGES, "annotations": []}))
    (raw / "other.json").write_text('[{"id": 1, "image_id": 2}]')
    (raw / "third.json").write_text('{"annotations": [{"text": "a"}]}')
    assert choose_reader(raw).name == "folder"


# --- large files, and what they take -----------------------------------------------------------


@pytest.mark.campaign
def test_memory_stays_flat_however_many_annotations(tmp_path):
    path = tmp_path / "captions.json"
    with path.open("w") as file:
        images = ", ".join(json.dumps(image(number)) for number in range(5_000))
        file.write(f'{{"info": {{}}, "images": [{images}], "annotations": [')
        for number in range(50_000):  # again and again through the images
            entry = {"image_id": number % 5_000, "caption": f"{number} " + "x" * 200}
            file.write((", " if number else "") + json.dumps(entry))
        file.write("]}")
    assert path.stat().st_size > 12 * 2**20
    (tmp_path / "000000000000.jpg").touch()
    tracemalloc.start()
    try:
        count = 0
        for number, sample in enumerate(read_all(READER, path, ReadOptions(scratch=tmp_path))):
            count += len(sample.record["captions"])
            assert sample.caption.startswith(f"{number // 10 + number % 10 * 5_000} ")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, number) == (500_000, 49_999)
    assert peak < 6 * 2**20


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_the_temporary_database_is_removed_wherever_reading_stops(make_coco, tmp_path, taken):
    orphan = {"image_id": 99, "caption": "c"}
    stream = read_all(
        READER, make_coco(annotations=[*ANNOTATIONS, orphan, orphan]), ReadOptions(scratch=tmp_path)
    )
    for _ in range(taken):
        next(stream)
    assert bool(list(tmp_path.glob("datapipe-*/join.sqlite"))) == bool(taken)
    stream.close()
    assert not list(tmp_path.glob("datapipe-*"))


def test_a_scratch_folder_that_cannot_be_used_is_named(make_coco, tmp_path):
    with pytest.raises(PackError, match=r"nowhere: no temporary folder can be made"):
        read(make_coco(), scratch=tmp_path / "nowhere")


@pytest.mark.parametrize("layout", ["coco", "table", "list"])
def test_the_report_says_what_repeated_images_take(make_coco, tmp_path, put, layout):
    texts = ["A cat", "A grey cat", "A cat on a mat"]
    if layout == "coco":
        raw, repeats = make_coco(), 2
    else:
        raw, repeats = put(tmp_path / "raw", {"0.jpg": 0, "1.jpg": 1}), 4
    if layout == "table":
        lines = [json.dumps({"image": f"{n}.jpg", "caption": texts}) for n in range(2)]
        (raw / "data.jsonl").write_text("\n".join(lines))
    elif layout == "list":
        lines = [f"{n}.jpg#{i}\t{text}" for n in range(2) for i, text in enumerate(texts)]
        (raw / "a.token.txt").write_text("\n".join(lines))
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    (line,) = [note for note in report.notes if "repeat" in note]
    start = f"{repeats} samples repeat an image for another of its captions and take "
    assert line.startswith(start)
    assert line.endswith("--captions first and --captions join store each image once")
    size = float(line.removeprefix(start).partition(" ")[0]) * 1000
    assert 0 < size < report.bytes
    for mode in ("first", "join"):
        report = pack_dataset(raw, tmp_path / mode, captions=mode, max_rejects=1)
        assert not any("repeat" in note for note in report.notes)
