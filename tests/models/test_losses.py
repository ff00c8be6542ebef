"""Tiny models learn from padded and packed batches what they learn one by one.

`tests/examples/test_huggingface_models.py` says so of the other families, and of gradients.
"""

from functools import cache

import pytest
from torch.nn.functional import pad
from transformers.models.lfm2 import modeling_lfm2

from .conftest import loader_of
from .losses import META, assert_losses, fails, loss_of, losses_alone
from .tiny import TINY

PADDED = [{"batch_size": 4}, {"max_tokens": 400}]
PACKED = [{"pack": 400}, {"pack": 400, "batch_size": 2}]
CASES = [
    pytest.param(name, attention, options, id=f"{name}-{attention}-{options}", marks=fails(name))
    for name, tiny in TINY.items()
    for attention in ("sdpa", "eager")
    for options in PADDED
    + PACKED * (tiny.packs.startswith("yes") or tiny.packs == "need causal-conv1d")
]


def convolve(hidden_states, weight, bias=None, seq_idx=None, **_):
    """As `causal_conv1d_fn` of the package causal-conv1d, which needs a GPU."""
    length = hidden_states.shape[-1]
    out = 0 if bias is None else bias[:, None]
    for back, factor in enumerate(weight.T.flip(0)):
        earlier = pad(hidden_states, (back, 0))[..., :length]
        if seq_idx is not None:
            earlier = earlier * (pad(seq_idx, (back, 0), value=-1)[:, :length] == seq_idx)[:, None]
        out = out + factor[:, None] * earlier
    return out


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
    made, shards, name, attention, options, monkeypatch
):
    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_fn", convolve)
    model, folder, alone = made(name, attention)
    batches = loader_of(shards, folder, meta=META, shuffle=True, **options)
    assert_losses(model, batches, alone, samples=12)


@pytest.mark.parametrize("name", ["lfm2_vl", "qwen3_5"])
def test_a_model_whose_convolutions_cannot_tell_samples_apart_refuses_packs(made, shards, name):
    model, folder, _ = made(name, "sdpa")
    batch = next(iter(loader_of(shards, folder, meta=META, pack=400)))
    assert batch["seq_idx"].shape == batch["input_ids"].shape
    with pytest.raises(ValueError, match=r"can.t keep packed sequences apart"):
        loss_of(model, batch)
