"""Tiny models of the families, with checkpoints whose images are as small."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers

from .checkpoints import CASES, Case

_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
_TEXT = {**_SIZES, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8}
_VISION = {**_SIZES, "num_hidden_layers": 1}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A tiny model of a family.

    Attributes:
        case: its checkpoint.
        config: returns its config, from the number of tokens.
        image: its image token.
        packs: "yes" if its attention keeps the samples of a pack apart, or what docs say.
    """

    case: Case
    config: Callable[[int], Any]
    image: str
    packs: str = "yes"

    def build(self, attention: str) -> torch.nn.Module:
        """Return it in float64, with weights that make attention matter."""
        processor = self.case.make()
        config = self.config(len(processor.tokenizer) + 8)
        config.image_token_id = processor.tokenizer.convert_tokens_to_ids(self.image)
        torch.manual_seed(0)
        auto: Any = transformers.AutoModelForImageTextToText
        made: torch.nn.Module = auto.from_config(config, attn_implementation=attention)
        for parameter in made.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        return made.double().eval()


def _of(source: str, **changes: Any) -> Case:
    return replace(CASES[source], **changes)


def _config(
    name: str, vision: dict[str, Any], text: dict[str, Any] | None = None, **options: Any
) -> Callable[[int], Any]:
    """A function that makes the config of a tiny model, from the number of tokens."""

    def make(vocabulary: int) -> Any:
        own = {**_TEXT, "vocab_size": vocabulary, **(text or {})}
        if "vocab_size_per_layer_input" in own:
            own["vocab_size_per_layer_input"] = vocabulary
        made: Any = getattr(transformers, f"{name}Config")
        # They write into what they are given.
        return made(vision_config=deepcopy(vision), text_config=deepcopy(own), **options)

    return make


_SMALL = {**_VISION, "image_size": 28, "patch_size": 14}
_PIXTRAL = {**_VISION, "head_dim": 8, "image_size": 112, "model_type": "pixtral"}
_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
_QWEN3 = {**_TOWER, "depth": 2, "deepstack_visual_indexes": [0], "num_position_embeddings": 64}
_AXES = {"rope_type": "default", "mrope_section": [2, 1, 1]}
_QWEN_LIMITS = {"min_pixels": 3136, "max_pixels": 25088}
_TILES = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
qwen2_vl = _config(
    "Qwen2VL",
    {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4},
    {"rope_parameters": _AXES},
)
_PINPOINTS = [[28, 56], [56, 28], [56, 56]]
_ONEVISION = [[28 * down, 28 * across] for down in (1, 2, 3) for across in (1, 2, 3)]
TINY = {
    "qwen2_5_vl": Tiny(
        case=_of("Qwen/Qwen2.5-VL-7B-Instruct", image_options=_QWEN_LIMITS),
        config=_config(
            "Qwen2_5_VL",
            {**_TOWER, "depth": 2, "fullatt_block_indexes": [1], "patch_size": 14},
            {"rope_parameters": _AXES},
        ),
        image="<|image_pad|>",
    ),
    "qwen3_vl": Tiny(
        case=_of(
            "Qwen/Qwen3-VL-8B-Instruct",
            image_options=_QWEN_LIMITS | {"patch_size": 16},
        ),
        config=_config("Qwen3VL", _QWEN3, {"rope_parameters": _AXES}),
        image="<|image_pad|>",
    ),
    "qwen3_5": Tiny(
        case=_of("qwen3_5", image_options=_QWEN_LIMITS | {"patch_size": 16}),
        config=_config(
            "Qwen3_5",
            _QWEN3,
            {"rope_parameters": _AXES | {"partial_rotary_factor": 1.0}, **_LINEAR},
        ),
        packs="need flash-linear-attention; not compared",
        image="<|image_pad|>",
    ),
    "internvl": Tiny(
        case=_of(
            "OpenGVLab/InternVL3-8B-hf",
            image_options={"size": {"height": 28, "width": 28}, "crop_to_patches": True},
            options={"image_seq_length": 1},
        ),
        config=_config(
            "InternVL",
            {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
            {"model_type": "qwen2"},
            image_seq_length=1,
            downsample_ratio=0.5,
        ),
        image="<IMG_CONTEXT>",
    ),
    "llava_next": Tiny(
        case=_of(
            "llava-hf/llava-v1.6-vicuna-7b-hf",
            image_options={
                "size": {"shortest_edge": 28},
                "crop_size": {"height": 28, "width": 28},
                "image_grid_pinpoints": _PINPOINTS,
            },
        ),
        config=_config(
            "LlavaNext",
            {**_SMALL, "num_hidden_layers": 2, "model_type": "clip_vision_model"},
            {"model_type": "llama"},
            image_grid_pinpoints=_PINPOINTS,
        ),
        image="<image>",
    ),
    "llava_onevision": Tiny(
        case=_of(
            "llava-hf/llava-onevision-qwen2-7b-ov-hf",
            image_options={
                "size": {"height": 28, "width": 28},
                "image_grid_pinpoints": _ONEVISION,
            },
            options={
                "num_image_tokens": 4,
                "vision_feature_select_strategy": "full",
                "vision_aspect_ratio": "anyres_max_4",
            },
        ),
        config=_config(
            "LlavaOnevision",
            {**_SMALL, "model_type": "siglip_vision_model", "vision_use_head": False},
            {"model_type": "qwen2"},
            image_grid_pinpoints=_ONEVISION,
            vision_aspect_ratio="anyres_max_4",
        ),
        image="<image>",
    ),
    "gemma3": Tiny(
        case=_of(
            "google/gemma-3-4b-it",
            image_options={"size": {"height": 28, "width": 28}},
            options={"image_seq_length": 4},
        ),
        config=_config("Gemma3", _SMALL, mm_tokens_per_image=4),
        image="<image_soft_token>",
        packs="refused",
    ),
    "pixtral": Tiny(
        case=_of("mistral-community/pixtral-12b", image_options={"size": {"longest_edge": 96}}),
        config=_config(
            "Llava",
            {**_PIXTRAL, "patch_size": 16},
            {"model_type": "mistral"},
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        image="[IMG]",
    ),
    "mistral3": Tiny(
        case=_of(
            "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            image_options={"size": {"longest_edge": 112}},
        ),
        config=_config(
            "Mistral3",
            {**_PIXTRAL, "patch_size": 14},
            {"model_type": "mistral"},
            spatial_merge_size=2,
            vision_feature_layer=-1,
        ),
        image="[IMG]",
    ),
    "idefics3": Tiny(
        case=_of(
            "HuggingFaceM4/Idefics3-8B-Llama3",
            image_options=_TILES,
            options={"image_seq_len": 1},
        ),
        config=_config("Idefics3", _SMALL, {"model_type": "llama"}, scale_factor=2),
        image="<image>",
    ),
    "smolvlm": Tiny(
        case=_of(
            "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
            image_options=_TILES,
            options={"image_seq_len": 1},
        ),
        config=_config("SmolVLM", _SMALL, {"model_type": "llama"}, scale_factor=2),
        image="<image>",
    ),
    "glm4v": Tiny(
        case=_of(
            "zai-org/GLM-4.1V-9B-Thinking",
            image_options={"size": {"shortest_edge": 6272, "longest_edge": 25088}},
        ),
        config=_config(
            "Glm4v",
            {**_TOWER, "depth": 1, "image_size": 112},
            {"rope_parameters": _AXES | {"partial_rotary_factor": 1.0}},
        ),
        image="<|image|>",
    ),
    "gemma4": Tiny(
        case=_of("google/gemma-4-E4B-it", image_options={"max_soft_tokens": 70}),
        config=_config(
            "Gemma4",
            {
                **_VISION,
                "num_key_value_heads": 4,
                "head_dim": 8,
                "patch_size": 16,
                "pooling_kernel_size": 3,
            },
            {
                "vocab_size_per_layer_input": None,
                "hidden_size_per_layer_input": 8,
                "num_kv_shared_layers": 0,
                "global_head_dim": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            audio_config=None,
        ),
        image="<|image|>",
    ),
}
