"""Processors of transformers that need torchvision, with Pillow where they call it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from transformers import image_processing_backends, video_processing_utils
from transformers.image_utils import SizeDict


def _resize(videos: Tensor, size: Sequence[int], interpolation: int, **_: Any) -> Tensor:
    """As torchvision does with uint8 [..., 3, h, w]; `interpolation` is Pillow's number."""
    frames = videos.reshape(-1, *videos.shape[-3:])
    made = [
        np.asarray(
            Image.fromarray(frame.permute(1, 2, 0).numpy()).resize(
                (size[1], size[0]), Image.Resampling(interpolation)
            )
        )
        for frame in frames
    ]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).reshape(*videos.shape[:-2], *size)


def _normalize(videos: Tensor, mean: Tensor, std: Tensor, inplace: bool = False) -> Tensor:
    return (videos - mean.view(3, 1, 1)) / std.view(3, 1, 1)


_FUNCTIONAL: Any = ModuleType("torchvision.transforms.v2.functional")
_FUNCTIONAL.resize, _FUNCTIONAL.normalize = _resize, _normalize
_FUNCTIONAL.pad = lambda images, padding, fill: pad(images, (0, padding[2], 0, padding[3]))
_FUNCTIONAL.grayscale_to_rgb = lambda video: video
_FUNCTIONAL.InterpolationMode = type("InterpolationMode", (), {"LANCZOS": 1, "BICUBIC": 3})
_PACKAGE: Any = ModuleType("torchvision.transforms.v2")
_PACKAGE.functional = _FUNCTIONAL

with patch.dict(
    sys.modules,
    {
        "torchvision": ModuleType("torchvision"),
        "torchvision.transforms": ModuleType("torchvision.transforms"),
        _PACKAGE.__name__: _PACKAGE,
        _FUNCTIONAL.__name__: _FUNCTIONAL,
    },
):
    from transformers.models.cohere2_vision.image_processing_cohere2_vision import (
        Cohere2VisionImageProcessor,
    )
    from transformers.models.cohere2_vision.image_processing_cohere2_vision import (
        get_optimal_tiled_canvas as cohere2_canvas,
    )
    from transformers.models.gemma4_unified.image_processing_gemma4_unified import (
        Gemma4UnifiedImageProcessor,
    )
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
    from transformers.models.llama4.image_processing_llama4 import (
        Llama4ImageProcessor,
        find_supported_resolutions,
        get_best_fit,
        get_max_res_without_distortion,
    )
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
        smart_resize as qwen3_vl_resize,
    )

__all__ = [
    "Cohere2VisionImageProcessor",
    "FloatLlama4ImageProcessor",
    "Gemma4UnifiedImageProcessor",
    "Lfm2VlImageProcessor",
    "Qwen2VLVideoProcessor",
    "Qwen3VLVideoProcessor",
    "cohere2_canvas",
    "llama4_sizes",
    "qwen3_vl_resize",
    "with_pillow",
]


class FloatLlama4ImageProcessor(Llama4ImageProcessor):
    """Llama 4's image processor, with float32 for bfloat16."""

    rescale_and_normalize = image_processing_backends.TorchvisionBackend.rescale_and_normalize


def llama4_sizes(
    height: int, width: int, tile: int, most: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Canvas of an image, and the size of the image in it, as in `_preprocess` of Llama 4."""
    grids = torch.tensor(find_supported_resolutions(most, SizeDict(height=tile, width=tile)))
    down, across = map(int, get_best_fit((height, width), grids))
    limits = min(max(height, tile), down), min(max(width, tile), across)
    high, wide = map(int, get_max_res_without_distortion((height, width), limits))
    return (down, across), (max(high, 1), max(wide, 1))


@contextmanager
def with_pillow() -> Iterator[None]:
    """Let processors call Pillow in place of torchvision."""
    same = {number: number for number in range(6)}
    with (
        patch.object(image_processing_backends, "tvF", _FUNCTIONAL, create=True),
        patch.object(image_processing_backends, "pil_torch_interpolation_mapping", same),
        patch.object(video_processing_utils, "tvF", _FUNCTIONAL, create=True),
    ):
        yield
