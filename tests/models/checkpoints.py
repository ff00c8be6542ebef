"""Checkpoints of every known model, in `checkpoints.yaml`, with a small tokenizer."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import transformers
import yaml
from tokenizers import AddedToken, Tokenizer
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.processing_utils import ProcessorMixin

from ..campaigns import rare
from ..text.families import template
from ..text.small_tokenizers import NAMED, small_tokenizer
from .video_processors import (
    Cohere2VisionImageProcessor,
    FloatLlama4ImageProcessor,
    Gemma4UnifiedImageProcessor,
    Lfm2VlImageProcessor,
)

# Its module imports a function for counting from that of the torchvision backend, which Pillow's
# has too. Nothing else of it is used.
with patch.dict(
    sys.modules,
    {"transformers.models.pixtral.image_processing_pixtral": image_processing_pil_pixtral},
):
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor


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
        tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=made,
            extra_special_tokens=self.names,
            **NAMED,
        )
        # The check of its parts needs the classes of videos, which need torchvision.
        with patch.object(ProcessorMixin, "check_argument_for_proper_class"):
            videos: dict[str, Any] = {}
            if self.model_type.startswith(("gemma3n", "gemma4")):  # which take audio too
                videos = {"feature_extractor": None}
            if self.model_type.startswith("gemma4"):
                videos["video_processor"] = None
            if self.videos is not None:
                videos["video_processor"] = self.videos(**self.video_options)
            if self.processor is transformers.SmolVLMProcessor:
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


def _case(given: dict[str, Any]) -> Case:
    stood_in = {
        made.__name__: made
        for made in (
            PixtralProcessor,
            Cohere2VisionImageProcessor,
            FloatLlama4ImageProcessor,
            Gemma4UnifiedImageProcessor,
            Lfm2VlImageProcessor,
        )
    }
    classes = {
        part: stood_in.get(given[part]) or getattr(transformers, given[part])
        for part in ("processor", "images")
    }
    # Some checkpoints have the template of another family with an image token of their own.
    text = template(given["template"])
    if image := given.pop("image", None):
        for written in (QWEN_IMAGE, "<image>", "<start_of_image>"):
            text = text.replace(written, image)
    return Case(**given | classes | {"template": text})


QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
CASES = {
    given["source"]: _case(given)
    for given in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
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
