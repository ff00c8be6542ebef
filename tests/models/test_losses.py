"""A tiny Gemma 3 learns from padded batches what it learns one by one.

`tests/examples/test_huggingface_models.py` says so of the other families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

import datapipe

from .checkpoints import CASES

META = ("key", "valid", "num_items_in_batch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = replace(
        CASES["google/gemma-3-4b-it"],
        image_options={"size": {"height": 28, "width": 28}},
        options={"image_seq_length": 4},
    )
    return case.save(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def shards(samples_of: Any, packed_samples: Callable[..., Path]) -> Path:
    return packed_samples(samples_of(12))


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> Gemma3ForConditionalGeneration:
    """In float64, with weights that make attention matter."""
    tokenizer = CASES["google/gemma-3-4b-it"].make().tokenizer
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = Gemma3Config(
        text_config={
            **sizes,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": len(tokenizer) + 8,
            "use_cache": False,  # with one, packs are not looked for in position_ids
        },
        vision_config={**sizes, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_id=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
    )
    made = Gemma3ForConditionalGeneration._from_config(config, attn_implementation=request.param)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return made.double().train()


def loss_of(model: torch.nn.Module, batch: dict[str, Any]) -> float:
    inputs = {name: value for name, value in batch.items() if name not in ("key", "valid")}
    inputs["pixel_values"] = inputs["pixel_values"].double()
    with torch.no_grad():
        return float(model(**inputs).loss)


@pytest.mark.campaign
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"max_tokens": 400}], ids=str)
def test_the_loss_of_a_batch_is_that_of_its_samples_one_by_one(
    model: torch.nn.Module, folder: Path, shards: Path, options: dict[str, Any]
) -> None:
    common: dict[str, Any] = {
        "model": folder, "meta": META, "num_workers": 0, "where": "images > 0"
    }  # fmt: skip
    alone = {}
    for batch in datapipe.make_loader(shards, batch_size=1, shuffle=False, **common):
        labels = batch["num_items_in_batch"]
        alone[batch["key"][0]] = loss_of(model, batch) * labels
    for batch in datapipe.make_loader(shards, **common, **options):
        valid = zip(batch["key"], batch["valid"].tolist(), strict=True)
        mean = sum(alone[key] for key, counts in valid if counts) / batch["num_items_in_batch"]
        # The model works its loss out in float32.
        assert loss_of(model, batch) == pytest.approx(mean, rel=1e-5)


def test_packs_are_refused_as_the_model_does_not_keep_their_samples_apart(
    folder: Path, shards: Path
) -> None:
    with pytest.raises(datapipe.PlanError, match=r"token_types=True.*give batch_size= or max_tok"):
        datapipe.make_loader(shards, model=folder, pack=400)
