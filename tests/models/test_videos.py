"""Batches with videos are what the processors of the Qwen families make of the same frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import datapipe

from .videos import VIDEO_CASES, samples, theirs, write_shards

OPTIONS: dict[str, Any] = {"shuffle": False, "num_workers": 0}


@pytest.fixture(autouse=True)
def passes_in_the_usual_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows first, then columns, as torch and every Pillow before 13 do."""
    resize = Image.Image.resize

    def rows_first(image: Image.Image, size: Any, resample: Any = None, **options: Any) -> Any:
        return resize(resize(image, (size[0], image.height), resample), size, resample)

    monkeypatch.setattr(Image.Image, "resize", rows_first)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("videos") / "shards", samples())


def assert_same_pixels(ours: Tensor, expected: Tensor, spec: datapipe.ImageSpec) -> None:
    assert ours.shape == expected.shape
    std = torch.tensor((spec.mean_std or ())[1]).view(3, 1)
    off = (ours - expected).view(len(ours), 3, -1).abs() * std * 255
    assert off.max() < 2.01
    assert (off > 1.01).sum() <= max(8, 5e-5 * off.numel())


@pytest.mark.parametrize("name", VIDEO_CASES)
def test_a_model_is_fed_as_by_its_processor(name: str, shards: Path, tmp_path: Path) -> None:
    case = VIDEO_CASES[name]
    model = case.save(tmp_path)
    processor = case.make()
    image, _ = datapipe.specs_for(model)
    loader = datapipe.make_loader(shards, model=model, batch_size=1, **OPTIONS)
    for batch, sample in zip(loader, samples(), strict=True):
        expected = theirs(processor, sample)
        assert batch["input_ids"].tolist() == expected["input_ids"].tolist()
        for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts"):
            assert (key in batch) == (key in expected)
            if key in expected:
                assert torch.equal(batch[key], expected[key])
        for key in ("pixel_values", "pixel_values_videos"):
            assert (key in batch) == (key in expected)
            if key in expected:
                assert_same_pixels(batch[key], expected[key], image)
