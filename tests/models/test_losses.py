"""Tiny models learn from padded and packed batches what they learn one by one.

`tests/examples/test_huggingface_models.py` says so of the other families, and of gradients.
"""

from functools import cache

import pytest

from .conftest import loader_of
from .losses import META, assert_losses, losses_alone
from .tiny import TINY

PADDED = [{"batch_size": 4}, {"max_tokens": 400}]
PACKED = [{"pack": 400}, {"pack": 400, "batch_size": 2}]
CASES = [
    pytest.param(name, attention, options, id=f"{name}-{attention}-{options}")
    for name, tiny in TINY.items()
    for attention in ("sdpa", "eager")
    for options in PADDED + PACKED * tiny.packs.startswith("yes")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, shards):
    """A tiny model, the folder of its checkpoint, and the summed losses of samples by key."""

    @cache
    def make(name, attention):
        model, folder = TINY[name].build(attention), tmp_path_factory.mktemp(name)
        batches = loader_of(shards, TINY[name].case.save(folder), meta=META, batch_size=1)
        return model, folder, losses_alone(model, batches)

    return make


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "attention", "options"), CASES)
def test_the_loss_of_a_batch_is_that_of_its_samples_one_by_one(
    made, shards, name, attention, options
):
    model, folder, alone = made(name, attention)
    batches = loader_of(shards, folder, meta=META, shuffle=True, **options)
    assert_losses(model, batches, alone, samples=12)
