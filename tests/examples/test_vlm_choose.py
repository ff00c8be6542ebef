"""Which kernel of attention is taken, and why another is not."""

import importlib

import pytest
import torch

from examples.vlm.model.attention import AUTO, KERNELS, choose, why_not

choosing = importlib.import_module("examples.vlm.model.attention.choose")


@pytest.fixture
def modules(monkeypatch):
    """Names of modules that are there, to add to and to take from; a GPU of 2018 has none."""
    there = {
        *("torch", "torch.nn.attention.flex_attention", "torch.nn.attention.varlen", "ampere"),
        *("flash_attn.flash_attn_interface", "xformers.ops"),
    }

    def find_spec(name):
        if name not in there and not name.startswith("torch"):
            raise ModuleNotFoundError(f"No module named {name.split('.')[0]!r}")
        return object() if name in there else None

    for owner, name, answer in (
        (choosing, "find_spec", find_spec),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "get_device_capability", lambda: (8, 0) if "ampere" in there else (7, 5)),
    ):
        monkeypatch.setattr(owner, name, answer)
    why_not.cache_clear()
    yield there
    why_not.cache_clear()


def test_an_unknown_kernel_is_an_error_that_names_the_known():
    with pytest.raises(ValueError, match="'fast' is none of") as error:
        why_not("fast", "cpu", torch.float32)
    assert all(name in str(error.value) for name in (AUTO, *KERNELS))


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "missing", "cause", "remedy"),
    [
        ("varlen", "cpu", torch.bfloat16, "", "no kernel for the CPU", "take split"),
        ("flash", "cpu", torch.bfloat16, "", "no kernel for the CPU", "take split"),
        ("xformers", "cpu", torch.float32, "", "no kernel for the CPU", "take split"),
        ("flex", "cpu", torch.float32, "", "no gradients on the CPU", "take split"),
        ("flex", "cuda", torch.float32, "torch.nn.attention.flex_attention", "2.5", "install"),
        ("varlen", "cuda", torch.float16, "torch.nn.attention.varlen", "torch 2.11", "install"),
        ("flash", "cuda", torch.float16, "flash_attn.flash_attn_interface", "flash-attn", "inst"),
        ("xformers", "cuda", torch.float32, "xformers.ops", "package xformers", "install"),
        ("varlen", "cuda", torch.float32, "", "not torch.float32", "--precision bf16"),
        ("flash", "cuda", torch.float32, "", "not torch.float32", "--precision bf16"),
        ("varlen", "cuda", torch.float16, "ampere", "Ampere", "sdpa"),
        ("flash", "cuda", torch.float16, "ampere", "Ampere", "sdpa"),
    ],
)
def test_a_reason_names_cause_and_remedy(modules, kernel, device, dtype, missing, cause, remedy):
    modules.discard(missing)
    reason = why_not(kernel, device, dtype)
    assert reason.startswith(kernel)
    assert cause in reason
    assert remedy in reason.split(";")[1]


def test_varlen_of_a_torch_that_takes_no_window_is_left_out(modules, monkeypatch):
    monkeypatch.setattr(choosing, "TORCH", (2, 10))
    reason = why_not("varlen", "cuda", torch.bfloat16)
    assert reason.startswith("varlen needs torch 2.11 or newer")
    assert "update torch" in reason


def test_the_kernel_chosen_on_a_gpu_is_the_best_that_is_there(modules):
    gpu = torch.device("cuda")
    choices = []
    for missing in ("", "flash_attn.flash_attn_interface", "torch.nn.attention.varlen"):
        modules.discard(missing)
        why_not.cache_clear()
        choices.append(choose(gpu, torch.bfloat16))
        assert choose(gpu, torch.float32) == "flex"
    modules.discard("torch.nn.attention.flex_attention")
    why_not.cache_clear()
    choices.append(choose(gpu, torch.float32))
    assert choices == ["flash", "varlen", "flex", "sdpa"]
