"""Options of an `ImageSpec` that do what the image processors of well-known models do."""

from __future__ import annotations

from typing import Any

from datapipe.decode.normalize import Triple

NORMALIZATIONS: dict[str, tuple[Triple, Triple]] = {
    # torchvision's models; OpenAI CLIP's preprocessing; SigLIP's preprocessing. RGB, of 0 to 1.
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "siglip": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

_VIT = {"patch": 14, "interpolation": "bicubic"}

# Each follows the defaults of the family's processor in transformers: the processor's class, and
# the checkpoint where it sets other values.
PRESETS: dict[str, dict[str, Any]] = {
    # torchvision's transforms of ResNet and most models after it.
    "imagenet": {"size": 224, "resize": "crop", "crop_from": 256, "normalize": "imagenet"},
    # CLIPImageProcessor, openai/clip-vit-large-patch14.
    "clip": {**_VIT, "size": 224, "resize": "crop", "normalize": "clip"},
    # SiglipImageProcessor, google/siglip-so400m-patch14-384.
    "siglip": {**_VIT, "size": 384, "resize": "stretch", "normalize": "siglip"},
    # Qwen2VLImageProcessor.
    "qwen2-vl": {
        **_VIT,
        "resize": "native",
        "merge": 2,
        "temporal": 2,
        "mrope": True,
        "normalize": "clip",
    },
    # dynamic_preprocess of InternVL 1.5 and later; GotOcr2ImageProcessor, OpenGVLab/InternVL3.
    "internvl": {
        **_VIT,
        "size": 448,
        "resize": "tiles",
        "tiles": 12,
        "merge": 2,
        "normalize": "imagenet",
    },
    # LlavaNextImageProcessor, llava-hf/llava-v1.6-mistral-7b-hf.
    "llava-next": {
        **_VIT,
        "size": 336,
        "resize": "tiles",
        "grids": ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
        "normalize": "clip",
        "fill": (0, 0, 0),
    },
}
