"""Outputs of packed batches, by sample."""

import pytest
import torch

import datapipe
from datapipe import PackSpec, PlanError

BOUNDS = torch.tensor([0, 3, 3, 7], dtype=torch.int32)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (7, 5), (1, 7, 5), (1, 7, 5, 2)], ids=str)
def test_parts_are_views_of_the_tokens_of_each_sample(shape):
    outputs = torch.arange(float(torch.tensor(shape).prod())).reshape(shape)
    parts = datapipe.unpack(outputs, BOUNDS)
    assert [len(part) for part in parts] == [3, 0, 4]
    assert torch.equal(torch.cat(parts), outputs.reshape(7, *shape[2 if shape[0] == 1 else 1 :]))
    assert all(part.untyped_storage().data_ptr() == outputs.data_ptr() for part in parts)


def test_gradients_flow_through_the_parts():
    outputs = torch.ones(1, 7, requires_grad=True)
    datapipe.unpack(outputs, BOUNDS)[2].sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.tolist() == [[0.0] * 3 + [1.0] * 4]


def test_a_dict_gives_a_dict_for_each_sample():
    outputs = {"logits": torch.ones(1, 7, 2), "loss": torch.arange(7)}
    parts = datapipe.unpack(outputs, BOUNDS, samples=1)
    assert [{name: tuple(part.shape) for name, part in of.items()} for of in parts] == [
        {"logits": (3, 2), "loss": (3,)}
    ]


@pytest.mark.parametrize("static", [False, True])
def test_each_sample_gets_its_own_tokens(make, text, static):
    image = datapipe.ImageSpec(size=32)
    alone = {
        batch["key"][0]: batch["input_ids"][0]
        for batch in make(text=text(), batch_size=1, meta="key", image=image)
    }
    seen = 0
    pack = PackSpec(256, multiple_of=8, static_shapes=static)
    for batch in make(text=text(), pack=pack, batch_size=2, meta="key", image=image):
        keys = batch["key"]
        parts = datapipe.unpack(batch["input_ids"], batch["cu_seq_lens_q"], samples=len(keys))
        assert len(parts) == len(keys)
        for key, part in zip(keys, parts, strict=True):
            own = alone[key]
            assert torch.equal(part[: len(own)], own)
            assert len(part) == -(-len(own) // 8) * 8
        seen += len(keys)
    assert seen >= len(alone)


@pytest.mark.parametrize(
    ("outputs", "bounds", "samples", "message"),
    [
        (torch.ones(1, 6, 2), BOUNDS, None, r"outputs is \[1, 6, 2\].* ends at 7 tokens"),
        (torch.tensor(1.0), BOUNDS, None, r"outputs is \[\].*reduction='none'"),
        ({"loss": torch.tensor(1.0)}, BOUNDS, None, r"outputs\['loss'\] is \[\]"),
        ({"past": None}, BOUNDS, None, r"outputs\['past'\] is a NoneType; give a tensor"),
        ([torch.ones(7)], BOUNDS, None, "give a Tensor or a dict"),
        (torch.ones(7), BOUNDS, 4, "samples=4: cu_seq_lens has 3 segments"),
        (torch.ones(7), BOUNDS, -1, "samples -1: give an integer from 0"),
        (torch.ones(7), [0, 7], None, r"cu_seq_lens \[0, 7\]: give a Tensor"),
        (torch.ones(7), BOUNDS[None], None, r"cu_seq_lens is torch.int32 \[1, 4\]"),
        (torch.ones(7), BOUNDS.float(), None, "cu_seq_lens is torch.float32"),
        (torch.ones(7), BOUNDS[:0], None, r"cu_seq_lens is torch.int32 \[0\]"),
        (torch.ones(7), BOUNDS + 1, None, "does not rise from 0"),
        (torch.ones(7), torch.tensor([0, 8, 7]), None, "does not rise from 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(outputs, bounds, samples, message):
    with pytest.raises(PlanError, match=message):
        datapipe.unpack(outputs, bounds, samples=samples)
