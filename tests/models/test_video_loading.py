"""Batches with videos go on from states, and are whole after cuts and skips."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch

import datapipe
from datapipe.inspect.preview.shown import IMAGE
from datapipe.testing import assert_resumes_exactly, assert_same_batches

from ..inspect.test_preview import content_of
from ..loader.damage import overwrite_image
from .conftest import loader_of
from .videos import VIDEO_CASES, VideoSample, clip, write_shards

NAMES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def test_a_run_resumes_exactly(folders, films):
    assert_resumes_exactly(
        partial(
            loader_of,
            films,
            folders["qwen2_5_vl"],
            batch_size=1,
            shuffle=True,
            meta=("key", "valid"),
        )
    )


@pytest.mark.parametrize("device", [None, "cpu"])
def test_defaults_of_torch_do_not_change_videos(device, folders, films):
    options = {"batch_size": 2, "device": device}
    expected = list(loader_of(films, folders["qwen2_5_vl"], **options))
    try:
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("meta")
        changed = list(loader_of(films, folders["qwen2_5_vl"], **options))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert_same_batches(changed, expected)


@pytest.mark.parametrize("name", NAMES)
def test_fewer_frames_are_as_if_only_they_had_been_packed(name, folders, tmp_path):
    whole = clip(9, (64, 48))
    kept = [0, 2, 4, 6, 8]
    fewer = replace(
        whole,
        frames=[whole.frames[number] for number in kept],
        numbers=[whole.numbers[number] for number in kept],
    )
    image, _ = datapipe.specs_for(folders[name])
    both = (
        loader_of(
            write_shards(tmp_path / key, [VideoSample([own, "What?"], "A walk.")]),
            folders[name],
            image=spec,
            batch_size=1,
        )
        for key, own, spec in (
            ("whole", whole, replace(image, max_frames=5)),
            ("fewer", fewer, image),
        )
    )
    assert_same_batches(next(both), next(both))


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("pack", [False, True])
def test_truncation_keeps_whole_videos_and_nothing_of_others(name, pack, folders, films):
    _, text = datapipe.specs_for(folders[name])
    tokenizer = VIDEO_CASES[name].make().tokenizer
    start, end = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    longest = max(
        len(batch["input_ids"][0]) for batch in loader_of(films, folders[name], batch_size=1)
    )
    for limit in {*range(20, longest, 19), longest}:
        cut = replace(text, max_length=limit, overlong="truncate")
        sizes = {"pack": longest + 5} if pack else {"batch_size": 3}
        for batch in loader_of(films, folders[name], text=cut, **sizes):
            ids = batch["input_ids"]
            assert (ids == start).sum() == (ids == end).sum()
            for grids, pixels, token in (
                ("image_grid_thw", "pixel_values", "<|image_pad|>"),
                ("video_grid_thw", "pixel_values_videos", "<|video_pad|>"),
            ):
                patches = int(batch[grids].prod(1).sum()) if grids in batch else 0
                assert len(batch.get(pixels, ())) == patches
                padded = (ids == tokenizer.convert_tokens_to_ids(token)).sum()
                assert patches == 4 * padded


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_damaged_frame_leaves_its_sample_empty(name, device, folders, films, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(films, damaged)
    overwrite_image(damaged, 1, image=3)  # the third frame, behind a still
    (whole,) = loader_of(films, folders[name], batch_size=5)
    loader = loader_of(damaged, folders[name], on_error="skip", device=device, batch_size=5)
    (batch,) = loader
    assert loader.skipped == 1
    for key in ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw"):
        assert batch[key].shape == whole[key].shape
    assert (batch["labels"][1] == -100).all()
    # Of two videos in front of it, behind it and its own, only its own is blank.
    frames = [int(count) for count in batch["video_grid_thw"].prod(1)]
    at = slice(frames[0], frames[0] + frames[1])
    assert not batch["pixel_values_videos"][at].any()
    same = torch.ones(len(batch["pixel_values_videos"]), dtype=torch.bool)
    same[at] = False
    assert torch.equal(batch["pixel_values_videos"][same], whole["pixel_values_videos"][same])
    images = int(batch["image_grid_thw"][0].prod())
    assert not batch["pixel_values"][:images].any()
    assert torch.equal(batch["pixel_values"][images:], whole["pixel_values"][images:])


def test_a_preview_shows_frames_and_the_tokens_of_videos(folders, films, tmp_path):
    page = tmp_path / "page.html"
    datapipe.preview(films, page, model=folders["qwen3_vl"], samples=5)
    steps = content_of(page.read_text("utf-8"))["steps"]
    shown = {sample["key"]: sample for step in steps for sample in step["samples"]}
    assert [len(sample["images"]) for _, sample in sorted(shown.items())] == [4, 6, 0, 5, 2]
    assert {image["size"] for image in shown["000"]["images"]} == {"128x96"}
    (tokens,) = shown["000"]["tokens"]
    assert tokens["kept"] == tokens["total"]
    assert [text for text, bits in tokens["pieces"] if bits == IMAGE] == ["12", "12"]
