"""Videos of records, as the projects that train on them lay them out."""

import base64
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from datapipe import PackError, pack_dataset

from .chats import llava, question, text
from .videos import picture, reasons, video_bytes, write_video


@pytest.fixture
def raw(tmp_path):
    """A folder with three videos, of 11, 6 and 2 frames, and an image."""
    folder = tmp_path / "raw"
    (folder / "videos").mkdir(parents=True)
    for name, frames in {"a": 11, "b": 6, "c": 2}.items():
        write_video(folder / "videos" / f"{name}.mp4", frames)
    return folder


@pytest.fixture
def frames_of(tmp_path, encode):
    """Writes frames of a video as images."""

    def write(folder, count):
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.jpg").write_bytes(encode(Image.fromarray(picture(number))))
        return [f"{folder.name}/{number}.jpg" for number in range(count)]

    return write


@pytest.fixture
def packed_record(raw, packed_videos):
    """Packs one record beside the videos."""

    def pack(record, video_frames="fps=2,max=8", name="data.json"):
        (raw / name).write_text(json.dumps([record]))
        ((kept, frames, sample),) = packed_videos(raw / name, video_frames)
        return kept, frames, sample

    return pack


def names(record):
    return [(video["name"], video["first"]) for video in record["video_frames"]]


def test_llava_video_marks_the_place_of_its_video_by_that_of_an_image(packed_record):
    record = llava("<image>\nWhat happens?", id="1", data_source="x", video="videos/a.mp4")
    kept, frames, _ = packed_record(record)
    assert kept["conversations"][0]["value"] == "<video>\nWhat happens?"
    assert (kept["video"], frames) == ("videos/a.mp4", [0, 5, 10])
    assert names(kept) == [("videos/a.mp4", 0)]


def test_qwen_vl_has_several_videos_and_images_in_the_order_of_their_places(
    raw, packed_record, encode
):
    (raw / "1.jpg").write_bytes(encode())
    videos = ["videos/a.mp4", "videos/b.mp4"]
    record = llava("<video>\nAnd <image>\nand <video>: what?", image="1.jpg", video=videos)
    kept, _, sample = packed_record(record)
    assert kept["conversations"][0]["value"] == record["conversations"][0]["value"]
    assert names(kept) == [("videos/a.mp4", 0), ("videos/b.mp4", 4)]
    first = ["v0.0000.jpg", "v0.0001.jpg", "v0.0002.jpg"]
    images = [ext for ext in sample if ext.endswith("jpg")]
    assert images == [*first, "jpg", "v1.0000.jpg", "v1.0001.jpg"]


@pytest.mark.parametrize(
    "record",
    [
        question("<video>What happens?", videos=["videos/a.mp4"]),  # LLaMA-Factory
        question([{"type": "video", "video": "videos/a.mp4"}, text("What happens?")]),  # ms-swift
        question([{"type": "video_url", "video_url": {"url": "videos/a.mp4"}}, text("What?")]),
        question([{"video": "videos/a.mp4", "fps": 1.0}, text("What happens?")]),  # Qwen-VL
        question("<video>videos/a.mp4</video>What happens?"),  # ms-swift
        question("What happens?", video="videos/a.mp4"),
        question("<|vision_start|><|video_pad|><|vision_end|>What?", videos=["videos/a.mp4"]),
        question([{"type": "video"}, text("What happens?")], videos=["videos/a.mp4"]),
    ],
)
def test_chats_have_videos_beside_their_messages_and_in_their_parts(packed_record, record):
    kept, frames, _ = packed_record(record)
    assert (names(kept), frames) == ([("videos/a.mp4", 0)], [0, 5, 10])
    assert kept["messages"] == record["messages"]


def test_frames_that_are_images_keep_their_bytes_and_get_times(raw, packed_record, frames_of):
    listed = frames_of(raw / "f", 5)
    part = {"type": "video", "video": listed, "sample_fps": 2.0}
    kept, frames, sample = packed_record(question([part, text("What happens?")]))
    assert frames == [0, 1, 2, 3, 4]
    assert sample["v0.0003.jpg"] == (raw / listed[3]).read_bytes()
    assert kept["video_frames"] == [
        {"name": "f/0.jpg", "first": 0, "times": [0, 0.5, 1, 1.5, 2], "duration": 2.5, "fps": 2.0}
    ]
    assert kept["messages"][0]["content"][0] == part


@pytest.mark.parametrize("name", ["f/", "f"])
def test_a_folder_of_frames_is_a_video_in_the_order_of_their_numbers(
    raw, packed_record, frames_of, name
):
    frames_of(raw / "f", 11)
    (raw / "f" / "notes.txt").write_text("no frame")
    kept, frames, sample = packed_record(
        llava("<video>\nWhat happens?", video=name, fps=2), "fps=2,max=20"
    )
    assert (kept["video"], frames) == (name, list(range(11)))
    assert [(v["name"], v["times"][-1]) for v in kept["video_frames"]] == [(name, 5.0)]
    assert (raw / "f" / "10.jpg").read_bytes() in sample.values()


def test_a_folder_without_frames_is_a_reject_by_name(raw, tmp_path, rejects):
    (raw / "empty").mkdir()
    records = [llava("<video>\nWhat?", video=name) for name in ("videos/a.mp4", "empty")]
    (raw / "data.json").write_text(json.dumps(records))
    pack_dataset(raw / "data.json", tmp_path / "out", video_frames="fps=2,max=8", max_rejects=1)
    (line,) = rejects(tmp_path / "out")
    assert (line["file"], line["reason"]) == ("empty", "the folder holds no images")


def test_frames_without_a_rate_are_a_second_apart_and_the_report_says_so(tmp_path, raw, frames_of):
    listed = frames_of(raw / "f", 5)
    (raw / "data.json").write_text(json.dumps([llava("<video>What happens?", video=listed)]))
    report = pack_dataset(raw / "data.json", tmp_path / "out", video_frames="fps=2,max=3")
    assert (report.videos, report.frames, report.images) == (1, 3, 3)
    assert report.shown[0].turns[0][1].startswith("<video: ")
    assert any("without `fps`, taken as one a second" in note for note in report.notes)


def test_a_table_holds_videos_or_their_paths(tmp_path, raw, packed_videos):
    rows = [
        {"video": {"bytes": video_bytes(6), "path": None}, "caption": "A cat."},
        {"video": {"bytes": None, "path": "videos/c.mp4"}, "caption": "A dog."},
    ]
    pq.write_table(pa.Table.from_pylist(rows), raw / "data.parquet")
    first, second = packed_videos(raw / "data.parquet")
    assert (first[1], first[2]["txt"], names(first[0])) == ([0, 5], b"A cat.", [("video:0", 0)])
    assert (second[1], second[2]["txt"]) == ([0, 1], b"A dog.")
    assert names(second[0]) == [("videos/c.mp4", 0)]


@pytest.mark.parametrize("column", ["video_path", "file_name", "clip", "video_file"])
def test_a_table_names_videos_in_any_column(raw, packed_videos, column):
    # `metadata.csv` with `file_name` is what `datasets` reads as a folder of videos.
    lines = [f"{column},caption", *(f"{name}.mp4,Clip {name}." for name in "abc")]
    (raw / "videos" / "metadata.csv").write_text("\n".join(lines))
    found = packed_videos(raw)
    assert [sample["txt"] for _, _, sample in found] == [b"Clip a.", b"Clip b.", b"Clip c."]
    assert [len(frames) for _, frames, _ in found] == [3, 2, 2]
    videos = [record["video_frames"][0]["name"] for record, _, _ in found]
    assert videos == ["a.mp4", "b.mp4", "c.mp4"]


def test_a_record_whose_places_are_not_those_of_its_videos_is_rejected(tmp_path, raw):
    records = [
        llava("<video><video>What?", video="videos/a.mp4"),
        llava("<image><image>What?", video="videos/a.mp4"),
        llava("<video>What?", video="videos/none.mp4"),
        llava("What?", video="http://x/a.mp4"),
        question([{"type": "video", "video": "videos/a.mp4"}, text("?")], video="videos/b.mp4"),
        llava("<video>What?", video="videos/a.mp4"),
    ]
    (raw / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "out"
    report = pack_dataset(raw / "data.jsonl", out, max_rejects=9, video_frames="fps=2,max=8")
    assert report.samples == 1
    found = reasons(out)
    assert "<video>" in found["data.jsonl#0"]
    assert "<image>" in found["data.jsonl#1"]
    assert found["data.jsonl#2"] == "file is missing"
    assert found["data.jsonl#3"].startswith("video is a URL (http://x/a.mp4), which packing does")
    assert found["data.jsonl#4"] == "record has videos both in its messages and in `video`"


def test_a_dry_run_says_how_many_videos_and_frames_there_are(raw):
    (raw / "data.json").write_text(json.dumps([llava("<video>What?", video="videos/a.mp4")]))
    report = pack_dataset(raw / "data.json", dry_run=True, video_frames="fps=2,max=8")
    assert (report.samples, report.videos, report.frames) == (1, 1, 3)


def test_places_of_a_json_beside_a_video_in_a_tar_are_those_of_the_video(
    tmp_path, packed_videos, make_tar
):
    record = json.dumps(llava("<image>What happens?")).encode()
    tar = make_tar(tmp_path / "raw.tar", [("0.mp4", video_bytes(11)), ("0.json", record)])
    ((kept, frames, _),) = packed_videos(tar)
    assert kept["conversations"][0]["value"] == "<video>What happens?"
    assert frames == [0, 5, 10]


def test_the_video_that_an_image_comes_from_is_no_video_of_its_sample(raw, encode, tmp_path):
    (raw / "1.jpg").write_bytes(encode())
    record = llava("<image>What is it?", image="1.jpg", video_path="videos/a.mp4")
    (raw / "data.json").write_text(json.dumps([record]))
    report = pack_dataset(raw / "data.json", tmp_path / "out", video_frames="fps=2,max=8")
    assert (report.samples, report.images, report.videos) == (1, 1, 0)


@pytest.mark.parametrize("format", ["mp4", "mov", "matroska"])
def test_a_video_may_stand_in_a_record_as_base64(packed_record, format):
    data = base64.b64encode(video_bytes(6, format)).decode()
    for value in (data, f"data:video/mp4;base64,{data}"):
        kept, frames, _ = packed_record(question("<video>What happens?", videos=[value]))
        assert (kept["videos"], names(kept), frames) == (["video:0"], [("video:0", 0)], [0, 5])


@pytest.fixture
def mapped(raw, packed_videos):
    """Packs rows of one table by a map."""

    def pack(rows, map):
        (raw / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return packed_videos(raw / "data.jsonl", map=map)

    return pack


def test_a_map_names_several_videos_and_a_path_into_a_field(mapped):
    row = {"clip": {"at": "videos/a.mp4"}, "then": "videos/b.mp4", "said": "It jumps."}
    turns = "user='<video>And <video>?',assistant=said"
    ((kept, frames, _),) = mapped([row], f"video=clip.at,video=then,{turns}")
    assert (names(kept), frames) == ([("videos/a.mp4", 0), ("videos/b.mp4", 3)], [0, 5, 10, 0, 5])
    assert kept["messages"][1]["content"] == "It jumps."


def test_a_map_of_a_video_and_a_caption_reads_columns_of_names_without_an_ending(mapped, raw):
    (raw / "videos" / "a.mp4").rename(raw / "videos" / "a")
    ((kept, frames, sample),) = mapped([{"id": "a", "t": "A cat."}], "video=videos/{id},caption=t")
    assert (names(kept), frames, sample["txt"]) == ([("videos/a", 0)], [0, 5, 10], b"A cat.")
    assert kept["id"] == "a"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, r"--map 'video=clip' needs --video-frames fps=2,max=64"),
        ({"video_frames": "fps=2"}, r"column `clip` holds no video"),
    ],
)
def test_a_map_of_videos_without_any_is_refused(raw, tmp_path, options, reason):
    (raw / "data.jsonl").write_text(json.dumps({"clip": "", "t": "A cat."}))
    with pytest.raises(PackError, match=reason):
        pack_dataset(raw / "data.jsonl", tmp_path / "out", map="video=clip,caption=t", **options)
