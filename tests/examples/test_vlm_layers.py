"""One projection for queries, keys and values, and the blocks that are computed again."""

import pytest
import torch

from examples.vlm.model.layers import Attention, Transformer, angles
from examples.vlm.techniques import NONE, Recompute, read_recompute

from .attend import make_segments

TOKENS = 12
TURNED, SEGMENTS = angles(torch.arange(TOKENS), 8), make_segments([7, 5], True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("some", "give all, N"),
        ("-1", "give all, N"),
        ("1,x", "give all, N"),
        ("parts:2", "give all, N"),
        ("0", "give 1 or more"),
        ("1,5", "numbers from 0 to 4"),
        ("99", "there are 5 blocks; give 1 to 5"),
        ("sequential:6", "5 blocks make 1 to 5 runs"),
        ("sequential:0", "5 blocks make 1 to 5 runs"),
    ],
)
def test_other_texts_are_refused_with_those_that_are_not(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_recompute(text, 5)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("", []),
        ("all", [0, 1, 2, 3, 4]),
        ("2", [0, 2, 4]),
        ("5", [0]),
        ("1,3", [1, 3]),
        ("3,", [3]),
        ("sequential:2", [0, 1]),
    ],
)
def test_chosen_blocks_run_twice_and_gradients_stay_bit_equal(text, twice):
    torch.manual_seed(0)
    model = Transformer(width=32, layers=5, heads=4, kv_heads=2, hidden=64)
    for block in model.blocks:
        block.attention.dropout = 0.3
    x = torch.randn(TOKENS, 32)

    def gradients(recompute):
        model.recompute = recompute
        torch.manual_seed(1)
        model.zero_grad()
        model(x, TURNED, SEGMENTS, "split").square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    plain = gradients(NONE)
    calls = dict.fromkeys(model.blocks, 0)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda block, _: calls.update({block: calls[block] + 1}))
    again = gradients(read_recompute(text, 5))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert [number for number, n in enumerate(calls.values()) if n == 2] == twice
    assert sum(calls.values()) == 5 + len(twice)
    with torch.no_grad():
        model(x, TURNED, SEGMENTS, "split")
    assert sum(calls.values()) == 10 + len(twice)


def test_a_text_may_be_of_a_longer_stack_of_blocks():
    assert read_recompute("0,3", 5, whole=False) == NONE
    assert read_recompute("7", 5, whole=False) == Recompute(frozenset({0}))


def test_weights_are_dropped_in_training_alone():
    torch.manual_seed(0)
    layer = Attention(width=32, heads=4, kv_heads=2)
    x = torch.randn(TOKENS, 32)
    wanted = layer(x, TURNED, SEGMENTS, "split")
    layer.dropout = 0.5
    assert not torch.equal(layer(x, TURNED, SEGMENTS, "split"), wanted)
    layer.eval()
    assert torch.equal(layer(x, TURNED, SEGMENTS, "split"), wanted)
