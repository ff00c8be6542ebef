"""Tiny models learn from padded and packed batches what they learn one by one.

`tests/examples/test_huggingface_models.py` says so of the other families, and of gradients.
"""

from typing import Any

import pytest
import torch

import datapipe

from .conftest import loader_of
from .tiny import TINY

META = ("key", "valid", "num_items_in_batch")
PADDED: list[dict[str, Any]] = [{"batch_size": 4}, {"max_tokens": 400}]
PACKED: list[dict[str, Any]] = [{"pack": 400}, {"pack": 400, "batch_size": 2}]
CASES = [
    pytest.param(name, attention, options, id=f"{name}-{attention}-{options}")
    for name, tiny in TINY.items()
    for attention in ("sdpa", "eager")
    for options in PADDED + PACKED * (tiny.packs == "yes")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, shards):
    """A tiny model, the folder of its checkpoint, and the summed losses of samples by key."""
    known: dict[tuple[str, str], Any] = {}

    def make(name, attention):
        if (name, attention) not in known:
            folder = TINY[name].case.save(tmp_path_factory.mktemp(name))
            model, alone = TINY[name].build(attention), {}
            for batch in loader_of(shards, folder, meta=META, batch_size=1):
                alone[batch["key"][0]] = loss_of(model, batch) * batch["num_items_in_batch"]
            known[name, attention] = model, folder, alone
        return known[name, attention]

    return make


def loss_of(model, batch):
    inputs = {name: value for name, value in batch.items() if name not in ("key", "valid")}
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].double()
    with torch.no_grad():
        return float(model(**inputs).loss)


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "attention", "options"), CASES)
def test_the_loss_of_a_batch_is_that_of_its_samples_one_by_one(
    made, shards, name, attention, options
):
    model, folder, alone = made(name, attention)
    seen = 0
    for batch in loader_of(shards, folder, meta=META, shuffle=True, **options):
        valid = list(zip(batch["key"], batch["valid"].tolist(), strict=True))
        mean = sum(alone[key] for key, counts in valid if counts) / batch["num_items_in_batch"]
        # The model works its loss out in float32.
        assert loss_of(model, batch) == pytest.approx(mean, rel=1e-5)
        seen += sum(counts for _, counts in valid)
    assert seen == 12


def test_packs_are_refused_where_a_model_does_not_keep_their_samples_apart(tmp_path, shards):
    folder = TINY["gemma3"].case.save(tmp_path)
    with pytest.raises(datapipe.PlanError, match=r"token_types=True.*give batch_size= or max_tok"):
        datapipe.make_loader(shards, model=folder, pack=400)
