"""The smallest model with a tokenizer of bytes, for loops that are about something else."""

from __future__ import annotations

from typing import Any

import torch

import datapipe
from examples.vlm.data.texts import Vocabulary
from examples.vlm.model.attention import choose
from examples.vlm.model.config import MODELS
from examples.vlm.model.vlm import VLM


def make_tiny() -> tuple[VLM, dict[str, Any]]:
    """Make the model with fixed weights, and `image=` and `text=` of a loader for it."""
    config, vocabulary = MODELS["tiny"], Vocabulary.of(None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VLM(config, vocabulary.size, vocabulary.image_id, choose(device, torch.float32))
    image = datapipe.ImageSpec(size=config.vision.image_size, normalize="siglip")
    text = datapipe.TextSpec(
        tokenizer=vocabulary.tokenizer,
        template="chatml",
        image_tokens=config.vision.image_tokens,
        image_token=vocabulary.image,
    )
    return model, {"image": image, "text": text}
