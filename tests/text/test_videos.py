"""A video is one place in a text, and an image for each of its frames."""

import pytest

from datapipe.text.conversation import conversation
from datapipe.text.encode import SampleText
from datapipe.text.messages import read_caption, read_turns
from datapipe.text.videos import VIDEO_FIELD, Video, write_videos

from .encoding import QWEN_IMAGE, encoded, make, reason, written
from .families import QWEN2_VL


def video(first=0, frames=3):
    return Video("cat.mp4", first, tuple(number / 2 for number in range(frames)), 1.5, 25.0)


def asked(content, *videos, images=3, **fields):
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A cat."}]
    record = {"messages": messages, VIDEO_FIELD: write_videos(videos), **fields}
    return SampleText(None, record, images)


def pieces(sample):
    return read_turns(sample, system=None, newline=False)[0].pieces


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<video>What happens?", "What happens?"),
        ("<image>What happens?", "What happens?"),  # as LLaVA-Video marks it
        ("What happens?", "What happens?"),
        ("<|vision_start|><|video_pad|><|vision_end|>What happens?", "What happens?"),
        ([{"type": "video", "video": "cat.mp4"}, {"type": "text", "text": "What?"}], "What?"),
        ([{"video": "cat.mp4"}, {"text": "What?"}], "What?"),
        ([{"type": "video_url", "video_url": {"url": "http://x/cat.mp4"}}, "What?"], "What?"),
    ],
)
def test_every_spelling_of_a_place_becomes_the_video(content, text):
    assert pieces(asked(content, video(), video="cat.mp4")) == [video(), text]


def test_videos_and_images_stand_in_their_places():
    sample = asked("<image>a<video>b<video>", video(1), video(4, 2), images=6)
    assert pieces(sample) == [None, "a", video(1), "b", video(4, 2)]
    assert pieces(asked("What?", video(1), images=5)) == [None, video(1), None, "What?"]


def test_a_model_without_videos_sees_each_frame_as_an_image():
    sample = asked("<image>See <video>: what?", video(1), images=4, videos=["cat.mp4"])
    frames = "\n".join(["<image>"] * 3)
    assert f"<image>See {frames}: what?" in written(make("chatml"), sample)
    assert encoded(make("chatml"), sample).image_at.shape == (4,)
    frames = QWEN_IMAGE * 3
    qwen = make(QWEN2_VL, image_token="<|image_pad|>")
    assert f"{QWEN_IMAGE}See {frames}: what?" in written(qwen, sample)


def test_a_video_without_a_mark_is_written_as_so_many_images_are():
    plain = SampleText(None, {"messages": asked("What?").record["messages"]}, 3)
    assert written(make("chatml"), asked("What?", video())) == written(make("chatml"), plain)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [("A cat.", [video(), "A cat."]), ("A cat <video> jumps.", ["A cat ", video(), " jumps."])],
)
def test_a_caption_has_its_frames_first_or_where_it_marks_them(caption, expected):
    sample = SampleText(caption, {VIDEO_FIELD: write_videos([video()])}, 3)
    assert read_caption(sample) == expected
    assert encoded(make("caption"), sample).image_at.shape == (3,)


@pytest.mark.parametrize(
    ("sample", "cause"),
    [
        (
            asked("<video><video>", video()),
            "0 <image> and 2 <video> and the sample 0 images and 1 videos",
        ),
        (
            asked("<image><video><image>", video(1), images=4),
            "2 <image> and 1 <video> and the sample 1 images and 1 videos",
        ),
        (asked("<video><image>", video(1), images=4), "1 <image> and 1 <video> in another order"),
        (asked("What?", video(), images=2), "frames are images of the sample (it has 2)"),
        (
            asked("What?", **{VIDEO_FIELD: [video()._asdict() | {"times": [10**400]}]}),
            "its `video_frames` is not a list of name, first, times, duration and fps",
        ),
        (asked("What?", video(), audio="cat.wav"), "record has `audio`"),
        (asked([{"type": "audio", "audio": "cat.wav"}], video()), "a part (audio)"),
        (asked("<audio>What?", video()), "the place of audio"),
        (asked("<video>What?", images=0), "the place of a video"),
        (asked("What?", images=0, video="cat.mp4"), "record has `video`"),
        (asked([{"type": "video", "video": "cat.mp4"}], images=0), "a part (video)"),
    ],
)
def test_places_that_do_not_fit_and_other_media_are_refused(sample, cause):
    assert cause in reason(make(), sample)


def test_a_turn_of_a_video_alone_is_not_learnt():
    record = asked("What?", video()).record
    record["messages"][1]["content"] = "<video>"
    turns = conversation(record, images=3)
    assert [turn.trained for turn in turns] == [False, False]
