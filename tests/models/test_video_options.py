"""Options of videos: read from the files of a checkpoint, checked, and left out."""

import json
from dataclasses import replace

import pytest
import torch

import datapipe
from datapipe import ImageSpec, PlanError, TextSpec, VideoMarkup, VideoSpec
from datapipe.testing import assert_same_batches

from .conftest import loader_of
from .videos import VIDEO_CASES, VideoSample, clip, samples, write_shards


@pytest.fixture
def folder(tmp_path):
    return VIDEO_CASES["qwen3_vl"].save(tmp_path / "model")


def video_of(folder):
    return datapipe.specs_for(folder)[0].video


def test_limits_are_those_of_the_video_processor_wherever_they_are_written(folder):
    own, processor = folder / "video_preprocessor_config.json", folder / "processor_config.json"
    assert video_of(folder) == VideoSpec(min_pixels=4096, max_pixels=400_000, limits="video")
    content = json.loads(processor.read_text())
    limits = {"size": {"shortest_edge": 5000, "longest_edge": 60_000}}
    nested = limits | {"min_pixels": 7, "max_pixels": 70_000}  # which its class does not know
    processor.write_text(json.dumps(content | {"video_processor": nested}))
    assert (video_of(folder).min_pixels, video_of(folder).max_pixels) == (5000, 60_000)
    processor.write_text(json.dumps(content))
    own.unlink()  # what the class takes
    assert (video_of(folder).min_pixels, video_of(folder).max_pixels) == (131_072, 786_432)


def test_an_old_checkpoint_has_the_limits_of_its_images(tmp_path):
    folder = VIDEO_CASES["qwen2_vl"].save(tmp_path / "model", apart=True)
    (folder / "video_preprocessor_config.json").unlink()
    assert video_of(folder) == VideoSpec(min_pixels=3136, max_pixels=12_845_056)


def test_the_pace_of_positions_is_that_of_the_config(tmp_path):
    folder = VIDEO_CASES["qwen2_5_vl"].save(tmp_path / "model")
    assert video_of(folder).tokens_per_second == 2
    config = {"model_type": "qwen2_5_vl", "vision_config": {"tokens_per_second": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    assert video_of(folder).tokens_per_second == 4


def test_mappings_stand_for_the_options_of_videos():
    spec = ImageSpec(resize="native", video={"min_pixels": 784, "max_pixels": 78_400})
    assert spec.video == VideoSpec(min_pixels=784, max_pixels=78_400)
    text = TextSpec(tokenizer="x", video_markup={"frames": 4})
    assert text.video_markup == VideoMarkup(frames=4)


@pytest.mark.parametrize("without", ["image", "text"])
def test_each_frame_is_an_image_without_either_option(without, folder, films):
    image, text = datapipe.specs_for(folder)
    if without == "image":
        image = replace(image, video=None)
    else:
        text = replace(text, video_markup=None)
    (batch,) = loader_of(films, None, image=image, text=text, batch_size=5)
    assert "pixel_values_videos" not in batch
    assert len(batch["image_grid_thw"]) == 4 + 6 + 5 + 2
    assert (batch["image_grid_thw"][:, 0] == 1).all()


def test_a_video_of_one_frame_is_refused_where_each_patch_has_a_time(folder, films, tmp_path):
    shards = write_shards(
        tmp_path / "shards", [VideoSample([clip(1, (60, 60)), "What?"], "A cup."), *samples()]
    )
    with pytest.raises(PlanError, match="a video has 1 frame, and the model takes at least 2"):
        loader_of(shards, folder, batch_size=5)
    (batch,) = loader_of(shards, folder, on_error="skip", batch_size=5)
    (expected,) = loader_of(films, folder, batch_size=5)
    assert_same_batches([batch], [expected])
    qwen2 = VIDEO_CASES["qwen2_vl"].save(tmp_path / "qwen2")
    first = next(iter(loader_of(shards, qwen2, batch_size=5)))
    assert first["video_grid_thw"][0, 0] == 1


def test_an_image_only_dataset_has_no_keys_of_videos(folder, tmp_path):
    shards = write_shards(tmp_path / "shards", [samples()[4]])
    image, _ = datapipe.specs_for(folder)
    cache = datapipe.CacheSpec("64MB", keep="decoded")
    with loader_of(shards, folder, cache=cache, batch_size=1) as loader:
        (batch,) = loader
    assert "video_grid_thw" not in batch
    (plain,) = loader_of(shards, None, image=image, batch_size=1)
    assert "pixel_values_videos" not in plain


def test_names_and_record_have_to_tell_the_same_videos(folder, tmp_path):
    asked = replace(samples()[0], question=[*samples()[0].question[:1], "What?"])
    shards = write_shards(tmp_path / "shards", [asked, samples()[4]], told=False)
    with pytest.raises(datapipe.DecodeError, match=r"has videos of \[\] frames, but by .* \[4\]"):
        next(iter(loader_of(shards, folder, batch_size=2)))
    (batch,) = loader_of(shards, folder, on_error="skip", meta="valid", batch_size=2)
    assert batch["valid"].tolist() == [False, True]


def test_datasets_with_and_without_videos_are_one_mixture(folder, tmp_path):
    films = write_shards(tmp_path / "films", samples()[:1])
    stills = write_shards(tmp_path / "stills", [samples()[4]])
    (mixed,) = loader_of([films, stills], folder, batch_size=2)
    video, still = (next(iter(loader_of(one, folder, batch_size=1))) for one in (films, stills))
    for key in ("pixel_values_videos", "video_grid_thw"):
        assert torch.equal(mixed[key], video[key])
    for key in ("pixel_values", "image_grid_thw"):
        assert torch.equal(mixed[key], still[key])
    image, text = datapipe.specs_for(folder)
    without = {"image": replace(image, video=None), "text": replace(text, video_markup=None)}
    assert_same_batches(  # whose states and counts of tokens stay as they were
        loader_of(stills, folder, batch_size=1), loader_of(stills, None, batch_size=1, **without)
    )
    assert len([*stills.glob("tokens-*")]) == 1
