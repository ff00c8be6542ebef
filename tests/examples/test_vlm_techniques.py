"""The switches of training: each does what it is for, and the model learns the same."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from examples.vlm.model.layers import Block
from examples.vlm.techniques import Techniques, check_compiler

from .tensor_reads import Reads
from .test_vlm_attention import needs_a_compiler
from .vlm_runs import PACKED, fit

pytestmark = [pytest.mark.usefixtures("small_model"), pytest.mark.campaign]


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        (("--zero-gradients",), 0),
        (("--wait-for-losses",), 0),
        (("--recompute",), 0),
        (("--recompute", 2), 0),
        (("--recompute", "1,"), 0),
        (("--recompute", "sequential:2"), 0),
        (("--tf32",), 0),
        (("--num-workers", 2, "--prefetch", 1), 0),
        (("--cache", "1GB"), 0),
        (("--device-cache", "1GB"), 1e-5),
        (("--optimizer", "loop"), 1e-4),
        (("--optimizer", "foreach"), 1e-4),
        (("--attention", "sdpa"), 1e-4),
        (("--attention", "plain"), 1e-4),
        (("--static-shapes", "--max-images", 8), 1e-4),
        (("--precision", "bf16"), 0.03),
        (("--precision", "fp16"), 0.03),
    ],
    ids=str,
)
def test_a_switch_changes_how_a_step_is_computed_and_not_what_is_learnt(
    shards, arguments, tolerance
):
    plain = fit(shards, *PACKED, "--max-images", 8, "--steps", 9)
    other = fit(shards, *PACKED, "--max-images", 8, "--steps", 9, *arguments)
    assert other.losses == pytest.approx(plain.losses, rel=tolerance, abs=0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_to_the_norm_asked_for(shards, runs, precision):
    for most in (0, 0.01):
        fit(shards, *PACKED, "--steps", 2, "--clip", most, "--precision", precision)
    free, clipped = (
        torch.stack([p.grad.norm() for p in run.model.parameters()]).norm().item() for run in runs
    )
    assert free > 0.1
    assert clipped == pytest.approx(0.01, rel=0.01)


def test_losses_are_read_when_they_are_logged_and_not_before(shards):
    def reads(*more):
        with Reads() as reads:
            fit(shards, *PACKED, "--steps", 6, "--warm-up", 0, "--clip", 0, *more)
        return sum(tensor.ndim == 0 and tensor.is_floating_point() for tensor in reads.tensors)

    assert reads("--wait-for-losses") == reads() + 6


def test_switches_reach_what_they_are_for(shards, runs):
    two = (*PACKED, "--steps", 2)
    plain = fit(shards, *two, "--optimizer", "loop")
    fit(shards, *two, "--optimizer", "foreach", "--zero-gradients", "--attention", "sdpa")
    fit(shards, *two, "--tf32")
    assert torch.backends.cuda.matmul.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    fit(shards, *two, "--deterministic")
    assert torch.are_deterministic_algorithms_enabled()
    assert fit(shards, *two, "--precision", "bf16").losses != plain.losses
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    kinds = [(r.optimizer.defaults["foreach"], r.optimizer.defaults["fused"]) for r in runs]
    assert kinds[:3] == [(False, False), (True, False), (False, True)]
    assert [run.model.kernel for run in runs[:2]] == ["split", "sdpa"]
    fit(shards, *two, "--precision", "fp16")
    assert [run.scaler.is_enabled() for run in runs] == [False] * 5 + [True]
    for run in runs[:2]:
        run.techniques.zero(run.optimizer)
    freed, zeroed = ([p.grad for p in run.model.parameters()] for run in runs[:2])
    assert set(freed) == {None}
    assert not any(gradient is None or gradient.any() for gradient in zeroed)


def test_groups_of_an_optimizer_decay_matrices_alone(shards, runs):
    fit(shards, *PACKED, "--steps", 1)
    for group, flat in zip(runs[0].optimizer.param_groups, (False, True), strict=True):
        assert all((p.ndim <= 1) == flat for p in group["params"])
        assert (group["weight_decay"] == 0) == flat


@needs_a_compiler
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("mode", [(), ("default",)], ids=str)
def test_compiled_blocks_learn_the_same_and_are_compiled_once(shards, mode):
    pack = (*PACKED, "--max-images", 8, "--static-shapes", "--attention", "sdpa")
    plain = fit(shards, *pack, "--steps", 2)
    assert plain.compiled == (0, 0)
    compiled = fit(shards, *pack, "--steps", 2, "--compile", *mode)
    seconds, graphs = compiled.compiled
    assert graphs > 0
    assert seconds > 0.1
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-4)
    torch.compiler.reset()
    longer = fit(shards, *pack, "--steps", 6, "--compile", *mode)
    assert longer.compiled.graphs == graphs
    assert longer.to_dict()["compiled"]["graphs"] == graphs


@pytest.mark.parametrize(
    ("mode", "more", "keeps"),
    [
        ("default", (), False),
        ("reduce-overhead", (), False),
        ("max-autotune", ("--accumulate", 2), True),
        ("max-autotune", ("--accumulate", "auto"), True),
        ("max-autotune", ("--global-batch-size", 4), True),
    ],
    ids=str,
)
def test_modes_reach_the_compiler_and_what_keeps_gradients_its_check(
    shards, mode, more, keeps, monkeypatch
):
    asked = []
    checked = []

    def check(mode, device, keeps_gradients):
        checked.append((mode, keeps_gradients))

    monkeypatch.setattr(Block, "compile", lambda block, **options: asked.append(options["mode"]))
    monkeypatch.setattr("examples.vlm.train.check_compiler", check)
    fit(shards, *PACKED, "--steps", 1, "--compile", mode, *more)
    assert asked == [mode] * 4  # blocks of both transformers
    assert checked == [(mode, keeps)]


def test_what_cannot_be_compiled_is_refused_with_what_to_install(shards, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="there is no no-such-compiler; install g"):
        fit(shards, *PACKED, "--steps", 1, "--compile")


def test_cuda_graphs_are_refused_where_they_would_overwrite_gradients(monkeypatch):
    gpu, triton = torch.device("cuda"), ModuleType("triton")
    triton.__spec__ = ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match="pip install triton"):
        check_compiler("default", gpu)
    monkeypatch.setitem(sys.modules, "triton", triton)
    for mode in ("reduce-overhead", "max-autotune"):
        check_compiler(mode, gpu)
        with pytest.raises(ValueError, match=rf"--compile {mode} .*give --compile default"):
            check_compiler(mode, gpu, keeps_gradients=True)
    check_compiler("default", gpu, keeps_gradients=True)
    for option in ("accumulate=2", "accumulate_tokens=9", "accumulate_samples=9", "set_to_none=0"):
        name, value = option.split("=")
        assert Techniques(**{name: int(value)}).keeps_gradients
    assert not Techniques().keeps_gradients


@pytest.mark.parametrize("option", [("--accumulate", 4), ("--accumulate-samples", 7)], ids=str)
def test_accumulated_batches_teach_what_one_large_batch_does(shards, option):
    large = fit(shards, "--batch-size", 8, "--steps", 3)
    small = fit(shards, "--batch-size", 2, "--steps", 3, *option)
    assert small.losses == pytest.approx(large.losses, rel=1e-4)


def test_frozen_parts_stay_and_the_others_learn(shards, runs):
    for arguments in ((), ("--freeze-vision",), ("--lora", "2")):
        fit(shards, *PACKED, "--steps", 1, *arguments)
        fit(shards, *PACKED, "--steps", 4, *arguments)
    learnt = {2: lambda name: not name.startswith("vision")}
    learnt[4] = lambda name: "lora_" in name or name.startswith("projector")
    for begun, learns in learnt.items():
        was, now = (run.model.state_dict() for run in runs[begun : begun + 2])
        moved = {name for name in was if not torch.equal(was[name], now[name])}
        assert moved == set(filter(learns, was))


def test_missing_packages_are_named(shards, monkeypatch):
    for module, arguments in (
        ("bitsandbytes.optim", ("--optimizer", "8bit")),
        ("peft", ("--lora", 2)),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=f"pip install {module.partition('.')[0]}"):
            fit(shards, *PACKED, "--steps", 1, *arguments)


def test_states_of_8_bits_take_a_quarter_and_learn_and_go_on(shards, tmp_path, runs):
    pytest.importorskip("bitsandbytes", reason="pip install 'datapipe-vlm[train]'")
    whole = fit(shards, *PACKED, "--steps", 9, "--optimizer", "8bit")
    plain = fit(shards, *PACKED, "--steps", 9)
    assert whole.losses != plain.losses
    assert whole.losses == pytest.approx(plain.losses, rel=0.02)
    kinds = {
        state["state1"].dtype: state["state1"].numel() for state in runs[0].optimizer.state.values()
    }
    assert kinds.keys() == {torch.uint8, torch.float32}  # small tensors stay in 32 bits
    assert all(
        (state["state1"].dtype == torch.uint8) == (state["state1"].numel() >= 4096)
        for state in runs[0].optimizer.state.values()
    )
    file = tmp_path / "run.pt"
    begun = fit(shards, *PACKED, "--steps", 4, "--optimizer", "8bit", "--save", file)
    rest = fit(shards, *PACKED, "--steps", 9, "--optimizer", "8bit", "--resume", file)
    assert begun.losses + rest.losses == whole.losses
