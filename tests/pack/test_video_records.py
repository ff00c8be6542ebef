"""Videos of records, as the projects that train on them lay them out."""

import base64
import json

import pytest
from PIL import Image

from datapipe import DecodeError, ImageSpec, VideoSpec, make_loader, pack_dataset

from .chats import llava, question, text
from .videos import picture, video_bytes


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
    """Packs one record."""

    def pack(record, video_frames="fps=2,max=8", name="data.json"):
        (raw / name).write_text(json.dumps([record]))
        ((kept, frames, sample),) = packed_videos(raw / name, video_frames)
        return kept, frames, sample

    return pack


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


def test_a_folder_of_frames_is_found_from_a_relative_image_root(
    tmp_path, raw, frames_of, monkeypatch
):
    frames_of(raw / "f", 5)
    (raw / "data.json").write_text(json.dumps([llava("<video>What?", video="f", fps=2)]))
    monkeypatch.chdir(raw.parent)
    options = {"image_root": raw.name, "video_frames": "fps=2,max=20"}
    report = pack_dataset(raw / "data.json", tmp_path / "out", **options)
    assert (report.videos, report.frames, report.rejected) == (1, 5, 0)


def test_folders_of_frames_may_start_in_several_folders_of_images(tmp_path, raw, frames_of):
    frames_of(raw / "A" / "f", 3)
    frames_of(raw / "B" / "g", 4)
    for name in ("A/a.jpg", "B/b.jpg"):
        (raw / name).write_bytes((raw / "A" / "f" / "0.jpg").read_bytes())
    records = [llava("<video>What?", video=name, fps=2) for name in "fg"]
    records += [llava("<image>What?", image=name) for name in ("a.jpg", "b.jpg")]
    (raw / "data.json").write_text(json.dumps(records))
    report = pack_dataset(raw / "data.json", tmp_path / "out", video_frames="fps=2,max=20")
    assert (report.videos, report.frames, report.images, report.rejected) == (2, 7, 9, 0)


def test_frames_of_several_sizes_are_refused_where_patches_hold_several_frames(
    tmp_path, raw, frames_of
):
    listed = frames_of(raw / "f", 4)
    with Image.open(raw / listed[2]) as frame:
        frame.rotate(90, expand=True).resize((40, 64)).save(raw / listed[2])
    (raw / "data.json").write_text(json.dumps([llava("<video>What?", video=listed, fps=2)]))
    report = pack_dataset(raw / "data.json", tmp_path / "out", video_frames="fps=2,max=20")
    assert any("frames of a video that differ in size" in note for note in report.notes)
    image = ImageSpec(resize="native", patch=14, merge=2, temporal=2, video=VideoSpec())
    with pytest.raises(DecodeError, match=r"40x64 .* one size; scale them to it and pack .* again"):
        next(iter(make_loader(tmp_path / "out", batch_size=1, image=image)))
    alone = ImageSpec(resize="native", patch=14, merge=2)
    batch = next(iter(make_loader(tmp_path / "out", batch_size=1, image=alone)))
    assert len(batch["image_grid_thw"]) == 4


def test_frames_without_a_rate_are_a_second_apart_and_the_report_says_so(tmp_path, raw, frames_of):
    listed = frames_of(raw / "f", 5)
    (raw / "data.json").write_text(json.dumps([llava("<video>What happens?", video=listed)]))
    report = pack_dataset(raw / "data.json", tmp_path / "out", video_frames="fps=2,max=3")
    assert (report.videos, report.frames, report.images) == (1, 3, 3)
    assert report.shown[0].turns[0][1].startswith("<video: ")
    assert any("without `fps`, taken as one a second" in note for note in report.notes)


@pytest.mark.parametrize("format", ["mp4", "mov", "matroska"])
def test_a_video_may_stand_in_a_record_as_base64(packed_record, format):
    data = base64.b64encode(video_bytes(6, format)).decode()
    for value in (data, f"data:video/mp4;base64,{data}"):
        kept, frames, _ = packed_record(question("<video>What happens?", videos=[value]))
        assert (kept["videos"], frames) == (["video:0"], [0, 5])
        assert [(v["name"], v["first"]) for v in kept["video_frames"]] == [("video:0", 0)]
