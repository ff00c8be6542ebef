"""A folder as a download of Qwen2.5-VL leaves it, of a tiny model with fixed weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from ..models.checkpoints import CASES

SOURCE = "Qwen/Qwen2.5-VL-7B-Instruct"


def save_tiny_checkpoint(folder: Path) -> Path:
    """Write weights, config, tokenizer and processor."""
    limits = {"min_pixels": 4 * 28**2, "max_pixels": 16 * 28**2}
    case = replace(CASES[SOURCE], image_options=limits)
    case.save(folder)
    tokenizer = case.make().tokenizer
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    config = Qwen2_5_VLConfig(
        text_config={
            **sizes,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        },
        vision_config={
            **sizes,
            "out_hidden_size": 32,
            "depth": 2,
            "num_heads": 2,
            "fullatt_block_indexes": [1],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:  # so that attention matters
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder
