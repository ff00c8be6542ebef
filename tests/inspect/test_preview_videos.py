"""`preview` shows a video as a strip of small frames with their times."""

import json
import re

import datapipe
from tests.loader.video_shards import FRAMES, STILLS, make_shards


def shown(path, tmp_path, **options):
    """The samples on a page, by key."""
    page = tmp_path / "preview.html"
    image = datapipe.ImageSpec(size=32, **options)
    datapipe.preview(path, page, image=image, shuffle=False)
    found = re.search(r'type="application/json">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    steps = json.loads(found[1])["steps"]
    return {sample["key"]: sample for step in steps for sample in step["samples"]}


def test_a_video_is_a_strip_of_its_frames(tmp_path):
    samples = shown(make_shards(tmp_path / "shards"), tmp_path)
    for key, sample in samples.items():
        assert [video["count"] for video in sample["videos"]] == list(FRAMES[key])
        stills = [image for image in sample["images"] if "original" in image]
        assert len(stills) == (key in STILLS)
    first, second = samples["002"]["videos"]
    assert [frame["image"] for frame in first["frames"]] == [1, 2, 3]
    assert [frame["image"] for frame in second["frames"]] == list(range(4, 13))
    assert [frame["time"] for frame in second["frames"]] == [at / 2 for at in range(9)]
    assert all(frame["picture"].startswith("data:image/webp") for frame in second["frames"])


def test_of_a_long_video_some_frames_are_shown(tmp_path):
    (video,) = shown(make_shards(tmp_path / "shards"), tmp_path)["003"]["videos"]
    numbers = [frame["image"] for frame in video["frames"]]
    assert (video["count"], len(numbers), numbers[0], numbers[-1]) == (40, 32, 0, 39)
    assert (tmp_path / "preview.html").stat().st_size < 200_000


def test_frames_are_those_that_the_loader_takes(tmp_path):
    (video,) = shown(make_shards(tmp_path / "shards"), tmp_path, max_frames=3)["003"]["videos"]
    assert [frame["time"] for frame in video["frames"]] == [0, 10, 19.5]
