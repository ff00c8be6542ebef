"""COCO captions: images and annotations are joined by id in flat memory, and nothing is lost."""

import json
import tracemalloc
from functools import partial

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.readers.caption_files import COCO as READER

from .cases import cases
from .reading import choose_reader, estimate, read_all, recognises
from .reading import read as read_inputs

IMAGES = [{"id": number, "file_name": f"{number}.jpg"} for number in range(3)]
ANNOTATIONS = [
    {"image_id": number, "caption": f"caption {which} of {number}"}
    for number, which in ((1, 0), (0, 0), (2, 0), (1, 1), (0, 1))
]


@pytest.fixture
def make_coco(raw, put):
    """Writes a dataset as COCO unpacks: annotations/NAME.json and val2017/*.jpg."""

    def make(annotations=ANNOTATIONS, name="annotations/captions_val2017.json", folder="val2017"):
        images = {f"{folder}/{number}.jpg": number for number in range(3)}
        return put(raw, images | {name: {"images": IMAGES, "annotations": annotations}})

    return make


read = partial(read_inputs, READER)


# --- which file, which folder of images -------------------------------------------------------


@pytest.mark.parametrize(("name", "folder"), cases("places of COCO's captions and images"))
def test_images_are_found_where_datasets_keep_them(make_coco, name, folder):
    raw = make_coco(name=name, folder=folder)
    for given in (raw, raw / name, (raw / name).parent):
        assert choose_reader(given) is READER
        assert read(given)[0].images[0].blob.read()


def test_samples_are_estimated(make_coco):
    raw = make_coco()
    assert [estimate(READER, raw, ReadOptions(captions=m)) for m in ("all", "first")] == [5, 3]


@pytest.mark.parametrize("give", ["folder", "file"])
@pytest.mark.parametrize(
    "annotations",
    [[{"image_id": 0, "bbox": [1, 2]}], [], [{"image_id": 0, "caption": None}], [{"caption": 1}]],
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
    (raw / "000.json").write_text(json.dumps({"images": IMAGES, "annotations": []}))
    (raw / "other.json").write_text('[{"id": 1, "image_id": 2}]')
    (raw / "third.json").write_text('{"annotations": [{"text": "a"}]}')
    assert choose_reader(raw).name == "folder"


# --- large files, and what they take -----------------------------------------------------------


@pytest.mark.campaign
def test_memory_stays_flat_however_many_annotations(tmp_path):
    path = tmp_path / "captions.json"
    with path.open("w") as file:
        images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(5_000)]
        images = json.dumps(images)[1:-1]
        file.write(f'{{"info": {{}}, "images": [{images}], "annotations": [')
        for number in range(50_000):  # again and again through the images
            entry = {"image_id": number % 5_000, "caption": f"{number} " + "x" * 220}
            file.write((", " if number else "") + json.dumps(entry))
        file.write("]}")
    assert path.stat().st_size > 12 * 2**20
    (tmp_path / "0.jpg").touch()
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


@pytest.mark.parametrize("layout", ["coco", "table"])
def test_the_report_says_what_repeated_images_take(make_coco, tmp_path, put, layout):
    texts = ["A cat", "A grey cat", "A cat on a mat"]
    table = {"0.jpg": 0, "a.jsonl": {"image": "0.jpg", "caption": texts}}
    raw = make_coco() if layout == "coco" else put(tmp_path / "raw", table)
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    (line,) = [note for note in report.notes if "repeat" in note]
    start = "2 samples repeat an image for another of its captions and take "
    assert line.startswith(start)
    assert line.endswith("--captions first and --captions join store each image once")
    size = float(line.removeprefix(start).partition(" ")[0]) * 1000
    assert 0 < size < report.bytes
    for mode in ("first", "join"):
        report = pack_dataset(raw, tmp_path / mode, captions=mode, max_rejects=1)
        assert not any("repeat" in note for note in report.notes)
