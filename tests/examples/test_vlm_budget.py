"""The calculator of memory, compared with what training keeps, tensor by tensor."""

import json
import re
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from examples.vlm import budget as program
from examples.vlm.budget import Load, estimate
from examples.vlm.measure.memory import peak_of
from examples.vlm.model.config import MODELS
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.vlm import VLM
from examples.vlm.techniques import Techniques
from tests.campaigns import rare
from tests.fake_ranks import fake_rank

CPU = torch.device("cpu")
IMAGE = 3
WORDS = 260
LOAD = Load(tokens=256, images=3)
TINY = MODELS["tiny"]
SMALL = MODELS["small"]
SHRUNKEN = replace(SMALL, layers=2, vision=replace(SMALL.vision, layers=2, image_size=112))
TECHNIQUES = [
    {},
    {"recompute": "all"},
    {"lora": 4},
    {"freeze_vision": True},
    {"lora": 4, "recompute": "all"},
    {"recompute": "sequential:2"},
]
techniques = pytest.mark.parametrize("switches", TECHNIQUES, ids=str)


def make_batch(config, load):
    """Four samples of one length, each with its images at its beginning."""
    vision, length = config.vision, load.tokens // 4
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 200, (4, length), generator=made)
    for image in range(load.images):
        start = image // 4 * vision.image_tokens
        ids[image % 4, start : start + vision.image_tokens] = IMAGE
    size = (load.images, 3, vision.image_size, vision.image_size)
    batch = {"pixel_values": torch.randn(size, generator=made), "input_ids": ids, "labels": ids}
    if not load.packed:
        return {**batch, "labels": ids.clone()}
    return {
        **batch,
        "input_ids": ids.view(1, -1),
        "labels": ids.view(1, -1).clone(),
        "position_ids": torch.arange(length).repeat(4)[None],
        "cu_seq_lens_q": torch.arange(0, load.tokens + 1, length, dtype=torch.int32),
        "max_length_q": length,
    }


def make(config, switches, words):
    torch.manual_seed(0)
    model = VLM(config, words, IMAGE, "split")
    switches.apply(model)
    return model


class Kept:
    """Handle that autograd holds in place of a tensor; it dies with the graph's node."""

    def __init__(self, tensor):
        self.tensor = tensor


def saved_bytes(model, inputs, switches):
    """Bytes of all storages that the backward pass holds, but for weights and inputs."""
    given = [*model.parameters(), *inputs[:3], *inputs.patches[:3]]
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    seen = []

    def pack(tensor):
        kept = Kept(tensor)
        seen.append(weakref.ref(kept))
        return kept

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor)
    with hooks, switches.autocast(CPU):
        losses = model(inputs)
    alive = [kept.tensor.untyped_storage() for ref in seen if (kept := ref()) is not None]
    found = {each.data_ptr(): each.nbytes() for each in alive if each.data_ptr() not in known}
    assert losses.grad_fn is not None
    return sum(found.values())


@pytest.mark.parametrize(
    ("config", "load", "words", "precision"),
    [
        *((TINY, LOAD, WORDS, precision) for precision in ("fp32", "bf16")),
        rare(SHRUNKEN, Load(tokens=1024, images=6), WORDS, "bf16"),
        rare(SHRUNKEN, Load(tokens=1024, images=6), 32_000, "fp32"),
    ],
)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@techniques
def test_activations_are_those_that_autograd_keeps(
    config, load, words, precision, packed, switches
):
    chosen, load = Techniques(precision=precision, **switches), replace(load, packed=packed)
    model = make(config, chosen, words)
    measured = saved_bytes(model, make_inputs(make_batch(config, load), config, "split"), chosen)
    found = estimate(config, load, chosen, vocabulary=words, device="cpu")
    assert found.activations + found.casts == pytest.approx(measured, rel=0.02)


def held(tensors):
    """Bytes on this rank."""
    local = (each.to_local() if isinstance(each, DTensor) else each for each in tensors)
    return sum(each.nbytes for each in local)


def assert_step(config, load, words, switches, ranks=1):
    """Compare bytes of parameters, gradients and states, and the most that a step had."""
    model = make(config, switches, words)
    if ranks > 1:
        for block in [*model.vision.transformer.blocks, *model.language.blocks, model]:
            fully_shard(block)
    optimizer = switches.make_optimizer(model, rate=1e-3, decay=0.1)
    batch = make_batch(config, load)

    def step():
        switches.zero(optimizer)
        inputs = make_inputs(batch, config, "split")
        with switches.autocast(CPU):
            losses = model(inputs)
        losses.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    zero = 3 if ranks > 1 else 0
    found = estimate(config, load, switches, vocabulary=words, device="cpu", ranks=ranks, zero=zero)
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert found.parameters == held(model.parameters())
    assert found.gradients == held(p.grad for p in model.parameters() if p.grad is not None)
    assert found.optimizer == held(states)
    switches.zero(optimizer)
    given = held(value for value in batch.values() if isinstance(value, Tensor))
    peak = peak_of(step, CPU) + found.parameters + found.optimizer + given
    assert found.peak == pytest.approx(peak, rel=0.1)
    assert found.peak <= found.total


@pytest.mark.parametrize(
    ("config", "load", "words", "precision"),
    [
        *((TINY, LOAD, WORDS, precision) for precision in ("fp32", "bf16")),
        rare(SHRUNKEN, Load(tokens=256, images=1), WORDS, "bf16"),
        rare(SHRUNKEN, Load(tokens=2048, images=12), 32_000, "fp32"),
    ],
)
@techniques
def test_the_peak_of_a_step_is_the_one_measured(config, load, words, precision, switches):
    assert_step(config, load, words, Techniques(precision=precision, **switches))


def test_gradients_that_are_there_from_the_batch_before_add_to_the_peak():
    load = Load(tokens=4096, images=8)
    alone, added = (
        estimate(TINY, load, Techniques(accumulate=count), vocabulary=WORDS) for count in (1, 2)
    )
    # With one batch the last activations are gone before the first gradients of the encoder come.
    assert added.peak - alone.peak > 0.8 * alone.gradients


def test_a_gpu_keeps_less_and_plain_attention_is_not_counted():
    here, there = (estimate(TINY, LOAD, device=device) for device in ("cpu", "cuda"))
    assert there.activations < here.activations
    with pytest.raises(ValueError, match="'plain' keeps every score"):
        estimate(TINY, LOAD, kernel="plain")


def test_stages_of_zero_divide_what_they_are_for():
    ddp, *zeros = (estimate(TINY, LOAD, ranks=4, zero=zero) for zero in (0, 1, 2, 3))
    divided = [
        [getattr(each, use) < 0.3 * getattr(ddp, use) for each in zeros]
        for use in ("optimizer", "gradients", "parameters")
    ]
    assert divided == [[True] * 3, [False, True, True], [False, False, True]]
    assert ddp.exchange == 0
    copied = estimate(TINY, LOAD, ranks=4, bucket_view=False)
    assert copied.exchange == copied.gradients
    for zero in zeros:
        assert zero.activations == ddp.activations
        assert zero.peak < ddp.peak


def test_states_of_8_bits_are_a_quarter():
    full, small = (
        estimate(SMALL, LOAD, Techniques(optimizer=kind)).optimizer for kind in ("fused", "8bit")
    )
    assert 0.25 < small / full < 0.27


def test_the_command_prints_a_table_that_adds_up(capsys):
    common = ["--model", "base", "--pack", "8192", "--images", "16", "--precision", "bf16"]
    program.main([*common, "--ranks", "8", "--zero", "3", "--memory", "80GB"])
    lines = capsys.readouterr().out.splitlines()
    sizes = {line.split()[0]: float(line.split()[1].replace(",", "")) for line in lines[1:-1]}
    uses = [size for name, size in sizes.items() if name not in ("sum", "peak")]
    assert sum(uses) == pytest.approx(sizes["sum"], abs=1)
    assert re.fullmatch("fits: the peak is 1.% of 80,000 MB", lines[-1])
    program.main([*common, "--memory", "8GB"])
    assert "does not fit" in capsys.readouterr().out
    program.main(["--model", "tiny", "--batch-size", "8", "--length", "32", "--json"])
    assert json.loads(capsys.readouterr().out)["parameters"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--pack 99 --zero 2", "divides over ranks, and there is 1"),
        ("--pack 99 --ranks 0", "ranks=0"),
        ("--pack 99 --images -1", "images=-1"),
        ("--pack 99 --memory much", "much"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, reason):
    with pytest.raises(SystemExit, match=reason):
        program.main(arguments.split())


def test_what_fsdp_holds_is_what_zero_3_says():
    """Its peak has the activations of the same batch, and what was gathered."""
    with fake_rank(0, 2):
        assert_step(TINY, LOAD, WORDS, Techniques(), ranks=2)
