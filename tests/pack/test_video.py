"""Videos, whose frames become images by their times."""

import io
import itertools
import re
import struct
import sys

import av
import numpy as np
import pytest
from PIL import Image

from datapipe import PackError, pack_dataset
from datapipe.decode.shrink import ShrinkOptions
from datapipe.decode.video import VideoOptions, VideoReader

from .cases import record_cases
from .videos import video_bytes, write_video


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ("fps=10,max=64", list(range(21))),
        ("fps=2,max=64", [0, 5, 10, 15, 20]),
        ("fps=2,max=3", [0, 10, 20]),
        ("fps=2,max=4", [0, 6, 13, 20]),
        ("fps=0.1,max=64", [0, 20]),
        ("fps=2,max=1", [0]),
        ("fps=20,max=64", [n // 2 for n in range(41)]),
    ],
)
def test_frames_are_evenly_spaced_from_the_first_to_the_last(raw, packed_videos, wanted, numbers):
    write_video(raw / "a.mp4", 21)
    ((record, frames, _),) = packed_videos(raw, wanted)
    (video,) = record["video_frames"]
    assert frames == numbers
    assert video["times"] == pytest.approx(
        [2.0 * n / max(len(numbers) - 1, 1) for n in range(len(numbers))], abs=1e-3
    )


@pytest.mark.parametrize(("options", "name"), record_cases("encodings of videos"))
def test_frames_are_found_by_time_in_every_container(raw, packed_videos, name, options):
    write_video(raw / name, 21, **options)
    ((record, frames, _),) = packed_videos(raw, "fps=10,max=5")
    assert frames == [0, 5, 10, 15, 20]
    (video,) = record["video_frames"]
    seconds = 20 / options.get("rate", 10)
    assert video["times"] == pytest.approx([seconds * n / 4 for n in range(5)], abs=2e-3)


def test_a_varying_rate_gives_the_frame_that_is_shown_at_each_time(raw, packed_videos):
    write_video(raw / "a.mkv", 5, at=[0, 100, 1500, 1600, 2000])
    ((record, frames, _),) = packed_videos(raw, "fps=2,max=64")
    assert record["video_frames"][0]["times"] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert frames == [0, 1, 1, 2, 4]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_frames_are_those_of_decoding_all_though_others_are_skipped(tmp_path, name, codec):
    at = [40 * n + 100 * ((n + 3) // 7) for n in range(90)]  # some are shown for longer
    path = write_video(tmp_path / name, 90, codec=codec, at=at, size=(64, 64), bf="3")
    with av.open(str(path)) as container:
        every = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode()]
    with path.open("rb") as file:
        reader = VideoReader(file, VideoOptions(fps=3), ShrinkOptions())
        for seconds, pixels in zip(reader.times, reader.pixels(), strict=True):
            shown = [p for time, p in every if time - every[0][0] <= seconds + 1e-9][-1]
            assert np.array_equal(pixels, shown)
        reader.close()


@pytest.mark.parametrize("name", ["a.mp4", "b.mkv"])
def test_few_frames_of_a_long_video_are_found_without_decoding_all_of_it(tmp_path, name):
    path = write_video(tmp_path / name, 300, rate=1, g="30", bf="2")
    with path.open("rb") as file:
        asked = itertools.count()  # the clock, which every packet that is read asks for the time
        options = VideoOptions(fps=1, max=4)
        reader = VideoReader(file, options, ShrinkOptions(), clock=lambda: next(asked) * 0.0)
        assert len(list(reader.pixels())) == 4
        assert next(asked) < 100
        reader.close()


def test_the_longer_side_is_bounded(raw, packed_videos):
    write_video(raw / "a.mp4", 3, size=(64, 48))
    ((_, _, sample),) = packed_videos(raw, video_size=32)
    assert Image.open(io.BytesIO(sample["v0.0000.jpg"])).size == (32, 24)


def cut(data):
    return data[: len(data) * 2 // 3]


def flip(data):
    middle = len(data) // 2
    flipped = bytes(255 - byte for byte in data[middle : middle + 200])
    return data[:middle] + flipped + data[middle + 200 :]


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("a.mkv", cut, r"the video broke at (\d\.\d) s: the file is cut there; it should last 4"),
        ("a.mp4", flip, r"the video broke at (\d\.\d) s: "),
        ("a.mp4", cut, "the video cannot be opened: "),
        ("a.avi", cut, r"the video broke at (\d\.\d) s: "),
        ("a.mp4", lambda data: b"", "the video cannot be opened: "),
        ("a.mp4", lambda data: b"a text " * 100, "the video cannot be opened: "),
        ("a.mp4", lambda data: video_bytes(0, sound=1), "the file has no video, only sound or ot"),
    ],
)
def test_a_damaged_video_is_a_reject_with_the_time_it_broke_at(
    tmp_path, raw, rejects, name, damage, reason
):
    write_video(raw / "good.mp4", 21, rate=5)
    codec = "mpeg4" if name.endswith("avi") else "libx264"
    write_video(raw / name, 40, codec=codec, g="5", size=(128, 128))
    (raw / name).write_bytes(damage((raw / name).read_bytes()))
    report = pack_dataset(raw, tmp_path / "out", max_rejects=9, video_frames="fps=4,max=64")
    assert (report.samples, report.videos, report.frames, report.rejected) == (1, 1, 17, 1)
    (line,) = rejects(tmp_path / "out")
    said = re.match(reason, line["reason"])
    assert line["source"] == name
    assert said
    if said.groups():
        assert 1 < float(said[1]) < 3.5  # of four seconds


def test_a_copy_of_a_dataset_keeps_its_frames(tmp_path, make_tar, members, packed):
    files = {"0.mp4": video_bytes(11), "0.txt": b"A cat jumps.", "1.mp4": video_bytes(6)}
    files["1.json"] = b'{"caption": "A dog.", "url": "http://x/y.mp4"}'
    turns = b'[{"from": "human", "value": "<video>What?"}, {"from": "gpt", "value": "A cat."}]'
    files |= {"2.mp4": video_bytes(2), "2.json": turns}
    samples = packed(make_tar(tmp_path / "raw.tar", files.items()), video_frames="fps=2,max=8")
    assert [len(sample) for sample in samples] == [5, 3, 3]
    pack_dataset(next((tmp_path / "out").glob("*.tar")), tmp_path / "again")
    assert list(members(tmp_path / "again").values()) == samples


@pytest.mark.parametrize(
    ("matrix", "dark"),
    [
        ((1, 0, 0, 1), "left"),
        ((0, 1, -1, 0), "top"),
        ((-1, 0, 0, -1), "right"),
        ((0, -1, 1, 0), "bottom"),
        ((-1, 0, 0, 1), "right"),
    ],
)
def test_frames_are_upright_by_the_matrix_of_the_file(raw, packed_videos, matrix, dark):
    data = bytearray(video_bytes(3, size=(64, 32)))
    start = data.index(b"tkhd") + 4 + 40  # ISO/IEC 14496-12, 8.3.2
    a, b, c, d = (value * 65536 for value in matrix)
    data[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    (raw / "a.mp4").write_bytes(data)
    ((_, _, sample),) = packed_videos(raw)
    image = Image.open(io.BytesIO(sample["v0.0000.jpg"])).convert("L")
    assert image.size == ((64, 32) if dark in ("left", "right") else (32, 64))
    pixels = np.asarray(image, int)
    parts = {
        "left": pixels[:, :8],
        "right": pixels[:, -8:],
        "top": pixels[:8],
        "bottom": pixels[-8:],
    }
    assert min(parts, key=lambda name: parts[name].mean()) == dark


def test_an_option_in_another_spelling_is_the_same_pack(tmp_path, raw):
    write_video(raw / "a.mp4", 3)
    pack_dataset(raw, tmp_path / "out", video_frames="fps=2,max=64")
    assert pack_dataset(raw, tmp_path / "out", video_frames=" max=64").finished_before


def test_a_missing_package_is_named_with_its_extra(tmp_path, raw, monkeypatch):
    write_video(raw / "a.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        PackError, match=r"videos need PyAV: install it with pip install 'datapipe-vlm\["
    ):
        pack_dataset(raw, tmp_path / "out", video_frames="fps=2")


def test_a_map_shows_what_it_makes_before_anything_is_written(tmp_path, put, capsys):
    row = {"v": "clip.mp4", "image": "a.jpg", "q": "What?"}
    rows = [row | {"a": "A cat."}, row]
    put(tmp_path / "raw", {"clip.mp4": video_bytes(10), "a.jpg": 0, "data.json": rows})
    given = {"map": "video=v,image=image,user=q,assistant=a", "video_frames": "fps=2"}
    report = pack_dataset(tmp_path / "raw/data.json", tmp_path / "out", max_rejects=1, **given)
    assert (report.samples, report.videos, report.frames) == (1, 1, 3)
    assert capsys.readouterr().err.splitlines() == [
        "--map 'video=v,image=image,user=q,assistant=a' makes of the first records:",
        "data.json#0: 1 image",
        "    user       <image> / <video> / What?",
        "  * assistant  A cat.",
        "data.json#1: rejected, field `a`, the assistant's turn, is empty",
    ]
