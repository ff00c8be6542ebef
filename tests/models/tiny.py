"""Tiny models of the families, in `tiny.yaml`, with checkpoints whose images are as small."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

from .checkpoints import CASES, Case

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A tiny model of a family.

    Attributes:
        case: its checkpoint.
        model: beginning of the name of its config.
        image: its image token.
        vision, text: parts of its config, whose other options are in `whole`.
        packs: "yes" if its attention keeps the samples of a pack apart, or what docs say.
    """

    case: Case
    model: str
    image: str
    vision: dict[str, Any]
    text: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    packs: str = "yes"

    def build(self, attention: str) -> Any:
        """Return it in float64, with weights that make attention matter."""
        tokenizer = self.case.make().tokenizer
        words = len(tokenizer) + 8
        text = _TEXT | {"vocab_size": words} | self.text
        if "vocab_size_per_layer_input" in text:
            text["vocab_size_per_layer_input"] = words
        # Configs write into what they are given.
        parts = deepcopy({"vision_config": self.vision, "text_config": text})
        config = getattr(transformers, f"{self.model}Config")(**parts, **self.whole)
        config.image_token_id = tokenizer.convert_tokens_to_ids(self.image)
        if self.case.videos is not None:
            config.video_token_id = tokenizer.convert_tokens_to_ids("<|video_pad|>")
            config.vision_config.tokens_per_second = 2  # of Qwen2.5-VL, as its checkpoint says
        torch.manual_seed(0)
        auto: Any = transformers.AutoModelForImageTextToText
        made = auto.from_config(config, attn_implementation=attention)
        for parameter in made.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        return made.double().eval()


def _tiny(*, source: str, case: dict[str, Any] | None = None, **options: Any) -> Tiny:
    return Tiny(case=replace(CASES[source], **case or {}), **options)


TINY = {
    name: _tiny(**given)
    for name, given in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text("utf-8")
    ).items()
    if name != "parts"
}
