"""Families of models by processor, and the options of one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from datapipe.declared import Say, checked
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PlanError
from datapipe.models.files import ModelFiles, open_checkpoint
from datapipe.models.gemma import gemma3, gemma3n, gemma4, gemma4_unified
from datapipe.models.lfm2 import lfm2_vl
from datapipe.models.llava import granite4_vision, llava, llava_next, llava_onevision
from datapipe.models.native import (
    glm4v,
    paddleocr_vl,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
    video_llama_3,
)
from datapipe.models.pixtral import lighton_ocr, pixtral
from datapipe.models.tiles import aya_vision, cohere2_vision, idefics3, internvl, llama4
from datapipe.text.spec import TextSpec, take_object

Model = Annotated[
    Any, take_object, Say("the folder of a model's checkpoint, or a processor of transformers")
]
Family = Callable[[ModelFiles], tuple[ImageSpec, TextSpec]]

_QWEN3_VL: dict[str, Family] = {"Qwen3VLProcessor": qwen3_vl}

MODELS: dict[str, dict[str, Family]] = {
    "qwen2_vl": {"Qwen2VLProcessor": qwen2_vl},
    "qwen2_5_vl": {"Qwen2_5_VLProcessor": qwen2_5_vl},
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen3_5": _QWEN3_VL,
    "qwen3_5_moe": _QWEN3_VL,
    "internvl": {"InternVLProcessor": internvl},
    "aya_vision": {"AyaVisionProcessor": aya_vision},
    "cohere2_vision": {"Cohere2VisionProcessor": cohere2_vision},
    "llama4": {"Llama4Processor": llama4},
    "qianfan_ocr": {"QianfanOCRProcessor": internvl},
    "gemma3": {"Gemma3Processor": gemma3},
    "gemma3n": {"Gemma3nProcessor": gemma3n},
    "gemma4": {"Gemma4Processor": gemma4},
    "gemma4_unified": {"Gemma4UnifiedProcessor": gemma4_unified},
    "llava": {"LlavaProcessor": llava, "PixtralProcessor": pixtral},
    "llava_next": {"LlavaNextProcessor": llava_next},
    "granite4_vision": {"Granite4VisionProcessor": granite4_vision},
    "llava_onevision": {"LlavaOnevisionProcessor": llava_onevision},
    "mistral3": {"PixtralProcessor": pixtral},
    "pixtral": {"PixtralProcessor": pixtral},
    "glm4v": {"Glm4vProcessor": glm4v},
    "glm4v_moe": {"Glm4vProcessor": glm4v},
    "glm46v": {"Glm46VProcessor": glm4v},
    "glm_ocr": {"Glm46VProcessor": glm4v},
    "lighton_ocr": {"LightOnOcrProcessor": lighton_ocr},
    "fast_vlm": {"LlavaProcessor": llava},
    "idefics3": {"Idefics3Processor": idefics3},
    "smolvlm": {"SmolVLMProcessor": idefics3},
    "paddleocr_vl": {"PaddleOCRVLProcessor": paddleocr_vl},
    "video_llama_3": {"VideoLlama3Processor": video_llama_3},
    "lfm2_vl": {"Lfm2VlProcessor": lfm2_vl},
}
"""By `model_type` of config.json: readers of the options of processors, the usual one first."""

_BY_PROCESSOR = {name: family for known in MODELS.values() for name, family in known.items()}


@checked(PlanError)
def specs_for(model: Model) -> tuple[ImageSpec, TextSpec]:
    """Return the options that make batches as the processor of a model makes them.

    What the model's files say rules; what they leave out is what the processor takes then. Change
    the result with `dataclasses.replace`, such as to bound `max_pixels` or `max_length`.

    Args:
        model: folder of a checkpoint as `save_pretrained` writes it, with `config.json`,
            `preprocessor_config.json` or `processor_config.json`, and `tokenizer.json`. Nothing is
            downloaded. Or a processor of transformers.

    Raises:
        PlanError: a file is missing, the family is not known, or its processor has an option that
            cannot be followed.

    Examples:
        >>> image, text = datapipe.specs_for("tiny-qwen2-vl/")
        >>> image.resize, image.patch, text.image_token
        ('native', 14, '<|image_pad|>')
    """
    checkpoint = open_checkpoint(model)
    try:
        return _family(checkpoint)(checkpoint)
    except PlanError as error:
        if checkpoint.name in str(error):
            raise
        raise checkpoint.refuse(f"its files make impossible options ({error})") from error
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        # Such as a text where a number is meant.
        raise checkpoint.refuse(f"an option in its files has an unknown form ({error})") from error


def _family(checkpoint: ModelFiles) -> Family:
    kind, processor = checkpoint.model_type, checkpoint.processor_class
    known = _BY_PROCESSOR if kind is None else MODELS.get(kind, {})
    if kind is not None and processor is None and known:
        return next(iter(known.values()))
    if processor in known:
        return known[processor]
    told = [f"{name} {value!r}" for name, value in (("model_type", kind), ("processor", processor))
            if value]  # fmt: skip
    raise PlanError(
        f"{checkpoint.name}: {' with '.join(told) or 'a checkpoint without a model_type'} is not "
        f"one of the known models: {', '.join(MODELS)}. Give image=ImageSpec(...) and "
        "text=TextSpec(...) that say what the model needs, and leave model= out"
    )
