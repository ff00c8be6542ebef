"""Ranks of a mesh that divide samples, tokens and heads learn what one process learns."""

import json

import pytest
import torch
import torch.distributed as dist

import datapipe
from examples.vlm.model.config import MODELS
from examples.vlm.model.inputs import make_inputs, own_share
from examples.vlm.parallel.mesh import check_heads, check_plain
from examples.vlm.parallel.pipeline import keep
from examples.vlm.techniques import Techniques
from tests.fake_ranks import fake_rank

from .mesh_ranks import CHECKS, RANKS
from .test_vlm_model import CONFIG, FORMS, WORDS, load, make_model
from .vlm_runs import start_ranks


@pytest.mark.parametrize(
    ("model", "tensor", "context", "reason"),
    [
        ("tiny", 2, 1, "3 heads of the encoder do not divide over 2 ranks"),
        ("tiny", 3, 1, "2 heads of keys in the language model do not divide over 3 ranks"),
        ("tiny", 1, 8, r"4 heads of the language model .* 8 ranks \(tensor 1, context 8\)"),
        ("small", 2, 8, r"8 heads of the language model .* 16 ranks \(tensor 2, context 8\)"),
    ],
)
def test_heads_that_do_not_divide_are_refused(model, tensor, context, reason):
    with pytest.raises(ValueError, match=reason):
        check_heads(MODELS[model], tensor, context)
    check_heads(MODELS["tiny"], 1, 4)  # more than its heads of keys


def test_adapters_are_not_divided():
    pytest.importorskip("peft")
    model = make_model("plain")
    check_plain(model)
    Techniques(lora=2).apply(model)
    with pytest.raises(ValueError, match=r" is a peft\..* without adapters"):
        check_plain(model)


def test_ranks_that_share_a_row_encode_few_images_of_others(shards):
    encoded = whole = 0
    for batch in load(shards, FORMS["fixed"], pack=datapipe.PackSpec(240, multiple_of=4)):
        inputs = make_inputs(batch, CONFIG, "split")
        whole += len(inputs.patches.values)
        for rank in range(4):
            with fake_rank(rank, 4):
                own = own_share(
                    inputs, dist.group.WORLD, image_id=WORDS.image_id, merged=4, kernel="split"
                )
            encoded += len(own.patches.values)
            part = slice(len(own.ids) * rank, len(own.ids) * (rank + 1))
            assert torch.equal(own.targets, inputs.targets[part])
            assert torch.equal(own.positions, inputs.positions[part])
    assert encoded < 2 * whole  # and 4 times as many if each rank encoded all images


def test_a_row_that_does_not_divide_is_refused(shards):
    inputs = make_inputs(next(iter(load(shards, FORMS["fixed"], pack=239))), CONFIG, "split")
    with fake_rank(0, 64), pytest.raises(ValueError, match=r"over 64 ranks .* multiple_of=64"):
        own_share(inputs, dist.group.WORLD, image_id=0, merged=4, kernel="split")


@pytest.fixture(scope="module")
def results(shards, tmp_path_factory):
    """Errors of four processes, by check."""
    folder = tmp_path_factory.mktemp("mesh")
    start_ranks(RANKS, "mesh_ranks", shards, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.campaign
@pytest.mark.parametrize("check", CHECKS)
def test_four_ranks_learn_what_one_does(results, check):
    for rank, errors in enumerate(results):
        assert not errors[check], f"rank {rank}: {errors[check]}"


def test_every_layer_of_a_pipeline_is_on_one_rank():
    whole = make_model("split")
    parts = []
    for number in range(3):
        model = make_model("split")
        keep(model, number, 3)
        parts += list(model.state_dict())
    assert sorted(parts) == sorted(whole.state_dict())
    layers = len(whole.language.blocks)
    with pytest.raises(ValueError, match=f"{layers} layers do not fill {layers + 2} ranks"):
        keep(whole, 0, layers + 2)
