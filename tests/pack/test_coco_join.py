"""The join of COCO's images and captions: in flat memory, and nothing is left behind."""

import json
import tracemalloc

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.readers.caption_files import COCO as READER

from .coco_files import ANNOTATIONS, image
from .reading import estimate, read_all


def read(raw, **options):
    """Return the inputs with the first caption of each image, unless another mode is given."""
    return list(read_all(READER, raw, ReadOptions(**{"captions": "first"} | options)))


def write_large(path, images, captions_each):
    """A file as COCO's, whose annotations go through the images again and again."""
    with path.open("w") as file:
        file.write('{"info": {}, "images": [')
        file.write(", ".join(json.dumps(image(number)) for number in range(images)))
        file.write('], "annotations": [')
        for number in range(images * captions_each):
            entry = {"id": number, "image_id": number % images, "caption": f"{number} " + "x" * 200}
            file.write((", " if number else "") + json.dumps(entry))
        file.write("]}")
    return path


@pytest.mark.campaign
def test_memory_stays_flat_however_many_annotations(tmp_path):
    path = write_large(tmp_path / "captions.json", 5_000, 10)
    (tmp_path / "000000000000.jpg").touch()
    assert path.stat().st_size > 12 * 2**20
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


def test_the_estimate_is_the_number_of_samples(tmp_path):
    path = write_large(tmp_path / "captions.json", 1000, 2)
    (tmp_path / "000000000000.jpg").touch()
    assert estimate(READER, path, ReadOptions()) == 2000
    assert estimate(READER, path, ReadOptions(captions="first")) == 1000


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
def test_the_report_says_what_repeated_images_take(make_coco, tmp_path, jpeg, layout):
    if layout == "coco":
        raw, repeats = make_coco(), 2
    else:
        raw, repeats = tmp_path / "raw", 4
        raw.mkdir()
        for number in range(2):
            (raw / f"{number}.jpg").write_bytes(jpeg(number))
        texts = ["A cat", "A grey cat", "A cat on a mat"]
        if layout == "table":
            lines = [json.dumps({"image": f"{n}.jpg", "caption": texts}) for n in range(2)]
            (raw / "data.jsonl").write_text("\n".join(lines))
        else:
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
