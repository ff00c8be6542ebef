"""Checkpoints of every known model: configured as published, with a small tokenizer."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
)
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor
from transformers.processing_utils import ProcessorMixin

from ..campaigns import rare
from ..text.families import (
    GEMMA_3,
    GEMMA_4,
    GLM4V,
    INTERNVL,
    LLAVA,
    ONEVISION,
    PIXTRAL,
    QWEN2_VL,
    QWEN3_VL,
    SMOLVLM,
)
from ..text.small_tokenizers import NAMED, small_tokenizer

# Its module imports a function for counting from that of the torchvision backend, which Pillow's
# has too. Nothing else of it is used.
with patch.dict(
    sys.modules,
    {"transformers.models.pixtral.image_processing_pixtral": image_processing_pil_pixtral},
):
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

CHATML_ANSWER = r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"
_PIXTRAL: dict[str, Any] = {
    "processor": PixtralProcessor,
    "images": image_processing_pil_pixtral.PixtralImageProcessorPil,
    "template": PIXTRAL,
    "answer": r"\[/INST\](.*?</s>)",
    "added": ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
}
_GLM: dict[str, Any] = {
    "template": GLM4V,
    "answer": r"<\|assistant\|>(.*?)(?=<\|user\|>|$)",
    "added": (
        *("[gMASK]", "<sop>", "<|begin_of_image|>", "<|end_of_image|>", "<|image|>"),
        *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
    ),
}
_TILE_NAMES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
_IDEFICS: dict[str, Any] = {
    "template": SMOLVLM,
    "answer": r"Assistant:\s*(.*?<end_of_utterance>)",
    "added": ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *_TILE_NAMES),
}
LLAVA_ANSWER = r"ASSISTANT: (.*?)(?=USER: |$)"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One checkpoint.

    Attributes:
        model_type: in its config.json.
        source: the published checkpoint whose options these are.
        processor, images: classes of transformers.
        image_options: of the image processor.
        options: of the processor.
        names: special tokens that its tokenizer names.
        template: chat template.
        answer: regular expression; its group is what is learnt of an answer.
        config: further content of config.json.
        tokenizer: kind of its tokenizer.
        added: special tokens that small tokenizers do not have.
        videos: class of its video processor, with `video_options`; None makes none.
    """

    model_type: str
    source: str
    processor: type[Any]
    images: type[Any]
    template: str
    answer: str
    image_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer: str = "byte-level"
    added: tuple[str, ...] = ()
    videos: type[Any] | None = None
    video_options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        """Return its processor."""
        made = Tokenizer.from_str(small_tokenizer(self.tokenizer).to_str())
        made.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in self.added]
        )
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=made,
            extra_special_tokens=self.names,
            **NAMED,
        )
        # The check of its parts needs the classes of videos, which need torchvision.
        with patch.object(ProcessorMixin, "check_argument_for_proper_class"):
            videos: dict[str, Any] = {}
            if self.processor is Gemma4Processor:
                videos = {"video_processor": None, "feature_extractor": None}
            if self.videos is not None:
                videos["video_processor"] = self.videos(**self.video_options)
            if self.processor is SmolVLMProcessor:
                videos["video_processor"] = SimpleNamespace(num_frames=1, fps=1)
            return self.processor(
                image_processor=self.images(**self.image_options),
                **videos,
                tokenizer=tokenizer,
                chat_template=self.template,
                **self.options,
            )

    def save(self, folder: Path, *, apart: bool = False) -> Path:
        """Write its files, with the image processor in a file of its own or not."""
        made = self.make()
        made.tokenizer.save_pretrained(folder)
        config = {"model_type": self.model_type} | self.config
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "chat_template.jinja").write_text(self.template)
        name = {"processor_class": self.processor.__name__}
        # As save_pretrained of the processor does, which needs classes of videos.
        images = made.image_processor.to_dict()
        if self.videos is not None:
            options = made.video_processor.to_dict()
            (folder / "video_preprocessor_config.json").write_text(json.dumps(options))
        if apart:
            (folder / "preprocessor_config.json").write_text(json.dumps(images | name))
        else:
            name |= {"image_processor": images}
        (folder / "processor_config.json").write_text(json.dumps(self.options | name))
        return folder


CLIP_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
LLAVA_OPTIONS = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_QWEN: dict[str, Any] = {
    "images": Qwen2VLImageProcessorPil,
    "answer": CHATML_ANSWER,
}
_QWEN_3 = _QWEN | {
    "processor": Qwen3VLProcessor,
    "template": QWEN3_VL,
    "image_options": {
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "patch_size": 16,
        **_HALF,
    },
}
_INTERNVL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
CASES = {
    case.source: case
    for case in (
        Case(
            model_type="qwen2_vl",
            source="Qwen/Qwen2-VL-7B-Instruct",
            processor=Qwen2VLProcessor,
            template=QWEN2_VL,
            image_options={"min_pixels": 3136, "max_pixels": 12845056},
            **_QWEN,
        ),
        Case(
            model_type="qwen2_5_vl",
            source="Qwen/Qwen2.5-VL-7B-Instruct",
            processor=Qwen2_5_VLProcessor,
            template=QWEN2_VL,
            image_options={"min_pixels": 3136, "max_pixels": 12845056},
            **_QWEN,
        ),
        Case(model_type="qwen3_vl", source="Qwen/Qwen3-VL-8B-Instruct", **_QWEN_3),
        Case(model_type="qwen3_vl_moe", source="Qwen/Qwen3-VL-30B-A3B-Instruct", **_QWEN_3),
        # With the options of Qwen3-VL.
        Case(model_type="qwen3_5", source="qwen3_5", **_QWEN_3),
        Case(model_type="qwen3_5_moe", source="qwen3_5_moe", **_QWEN_3),
        Case(
            model_type="internvl",
            source="OpenGVLab/InternVL3-8B-hf",
            processor=InternVLProcessor,
            images=GotOcr2ImageProcessorPil,
            template=INTERNVL,
            answer=CHATML_ANSWER,
            image_options={
                "size": {"height": 448, "width": 448},
                "crop_to_patches": True,
                "image_mean": [0.485, 0.456, 0.406],
                "image_std": [0.229, 0.224, 0.225],
            },
            names=_INTERNVL,
            config={"vision_config": {"patch_size": [14, 14]}},
        ),
        Case(
            model_type="gemma3",
            source="google/gemma-3-4b-it",
            processor=Gemma3Processor,
            images=Gemma3ImageProcessorPil,
            template=GEMMA_3,
            answer=r"<start_of_turn>model\n(.*?<end_of_turn>)",
            image_options={"size": {"height": 896, "width": 896}},
            options={"image_seq_length": 256},
            names={
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
                "image_token": "<image_soft_token>",
            },
        ),
        Case(
            model_type="gemma4",
            source="google/gemma-4-E4B-it",
            processor=Gemma4Processor,
            images=Gemma4ImageProcessorPil,
            template=GEMMA_4,
            answer=r"<\|turn>model\n(.*?<turn\|>)",
            names={
                "boi_token": "<|image>",
                "eoi_token": "<image|>",
                "image_token": "<|image|>",
                "boa_token": "<|audio>",
                "eoa_token": "<audio|>",
                "audio_token": "<|audio|>",
            },
            added=("<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>"),
        ),
        Case(
            model_type="llava",
            source="llava-hf/llava-1.5-7b-hf",
            processor=LlavaProcessor,
            images=CLIPImageProcessorPil,
            template=LLAVA,
            answer=LLAVA_ANSWER,
            image_options=CLIP_336,
            options=LLAVA_OPTIONS,
            tokenizer="metaspace",  # which begins texts with <s>
        ),
        Case(
            model_type="llava",
            source="llava-hf/llava-interleave-qwen-0.5b-hf",
            processor=LlavaProcessor,
            images=SiglipImageProcessorPil,
            template=QWEN2_VL.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>"),
            answer=CHATML_ANSWER,
            image_options={"size": {"height": 384, "width": 384}},
            options={"patch_size": 14, "vision_feature_select_strategy": "full"},
        ),
        Case(
            model_type="llava",
            source="mistral-community/pixtral-12b",
            image_options={
                "size": {"longest_edge": 1024},
                "patch_size": {"height": 16, "width": 16},
            },
            options={"patch_size": 16},
            **_PIXTRAL,
        ),
        Case(
            model_type="mistral3",
            source="mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            image_options={
                "size": {"longest_edge": 1540},
                "patch_size": {"height": 14, "width": 14},
            },
            options={"patch_size": 14, "spatial_merge_size": 2},
            **_PIXTRAL,
        ),
        Case(
            model_type="glm4v",
            source="zai-org/GLM-4.1V-9B-Thinking",
            processor=Glm4vProcessor,
            images=Glm4vImageProcessorPil,
            image_options={"size": {"shortest_edge": 12544, "longest_edge": 9633792}},
            **_GLM,
        ),
        Case(
            model_type="glm46v",
            source="zai-org/GLM-4.6V",
            processor=Glm46VProcessor,
            images=Glm46VImageProcessorPil,
            image_options={"size": {"shortest_edge": 12544, "longest_edge": 9633792}},
            **_GLM,
        ),
        Case(
            model_type="idefics3",
            source="HuggingFaceM4/Idefics3-8B-Llama3",
            processor=Idefics3Processor,
            images=Idefics3ImageProcessorPil,
            config={"vision_config": {"patch_size": 14}},
            **_IDEFICS,
        ),
        Case(
            model_type="smolvlm",
            source="HuggingFaceTB/SmolVLM2-2.2B-Instruct",
            processor=SmolVLMProcessor,
            images=SmolVLMImageProcessorPil,
            image_options={"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}},
            options={"image_seq_len": 81},
            config={"vision_config": {"patch_size": 14}},
            **_IDEFICS,
        ),
        Case(
            model_type="llava_next",
            source="llava-hf/llava-v1.6-vicuna-7b-hf",
            processor=LlavaNextProcessor,
            images=LlavaNextImageProcessorPil,
            template=LLAVA,
            answer=LLAVA_ANSWER,
            image_options=CLIP_336,
            options=LLAVA_OPTIONS,
            tokenizer="metaspace",  # which begins texts with <s>
        ),
        Case(
            model_type="llava_onevision",
            source="llava-hf/llava-onevision-qwen2-7b-ov-hf",
            processor=LlavaOnevisionProcessor,
            images=LlavaOnevisionImageProcessorPil,
            template=ONEVISION,
            answer=r"<\|im_start\|>assistant (.*?)<\|im_end\|>",
            image_options=_HALF,
            options={"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
        ),
    )
}


SLOW = {"HuggingFaceM4/Idefics3-8B-Llama3", "HuggingFaceTB/SmolVLM2-2.2B-Instruct"}
"""Checkpoints whose processors cut an image into many tiles."""


def mostly_quick(sources: Iterable[str], *, every: int = 1) -> list[Any]:
    """Return names of checkpoints as parameters.

    Slow processors are left to campaigns, and so are all but one in `every` of the others.
    """
    return [
        rare(source) if source in SLOW or number % every else source
        for number, source in enumerate(sources)
    ]
