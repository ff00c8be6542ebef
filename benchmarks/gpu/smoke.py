"""Every path to a GPU once, before anything is measured: what is installed, and what works.

    python -m benchmarks.gpu.smoke --json smoke.json

Each check says what it found, why there is nothing to check, or how it failed. The command ends
with an error if one failed. `pytest -m gpu` checks far more. `--rehearse` runs on the CPU.
"""

import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.attention.measure import Layer, uniform
from benchmarks.common import Absent, command, headline, machine, parse_args, show, write_json
from benchmarks.data import packed, photographs
from benchmarks.gpu.aims import describe, find_device
from benchmarks.gpu.decoders import SIDE, SPEC, torchvision_decoder
from benchmarks.gpu.loading import DECODERS, Decoders, wait
from datapipe import make_loader
from datapipe.decode.transform import make_transform
from examples.vlm.model.attention import KERNELS, attend, prepare, why_not

SAMPLES = 64
COMPILED = ("datapipe.decode.pixel_kernels", "datapipe.plan.packing_kernel")  # by numba


def main() -> None:
    parser = command("gpu.smoke", __doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU")
    options = parse_args(parser)
    device = find_device(rehearse=options.rehearse)
    packages = ("torch", "torchvision", "triton", "transformers", "numpy", "numba")
    others = ("nvidia-dali-cuda130", "nvidia-ml-py", "bitsandbytes", "flash-attn", "xformers")
    where = machine(*packages, *others, "peft", cache="not used") | {"gpu": describe(device)}
    found: dict[str, dict[str, str]] = {}
    for name, check in checks(device).items():
        found[name] = verdict(check)
        print(f"{name}: {found[name]['state']}: {found[name]['said']}", flush=True)
        write_json(options.json, {"machine": where, "checks": found})
    show(headline(where), ({"check": name} | one for name, one in found.items()))
    failed = [name for name, one in found.items() if one["state"] == "FAILED"]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def verdict(check: Callable[[], str]) -> dict[str, str]:
    """Return the state of a check, "ok", "absent" or "FAILED", and what it said."""
    try:
        return {"state": "ok", "said": check()}
    except (Absent, ImportError) as reason:
        return {"state": "absent", "said": str(reason)}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        said = (str(error).splitlines() or [""])[0]
        return {"state": "FAILED", "said": f"{type(error).__name__}: {said}"}


def checks(device: torch.device) -> dict[str, Callable[[], str]]:
    """Return all checks by name, the simplest first."""
    return {
        "a product": partial(product, device),
        **{f"numba: {name}": partial(compiled_by_numba, name) for name in COMPILED},
        "nvJPEG of torchvision": partial(torchvision, device),
        **{f"decoder: {name}": partial(decoder, device, name) for name in DECODERS},
        **{f"attention: {name}": partial(attention, device, name) for name in KERNELS},
        **{
            f"torch.compile: {mode}": partial(compiler, device, mode)
            for mode in ("default", "reduce-overhead", "max-autotune")
        },
        **{f"AdamW: {kind}": partial(optimizer, device, kind) for kind in ("fused", "8bit")},
        "utilization by NVML": partial(utilization, device),
        "events of the profiler": partial(profiler, device),
        "a process group": partial(process_group, device),
    }


def product(device: torch.device) -> str:
    factor = torch.arange(64.0).view(8, 8)
    there = factor.to(device)
    same((there @ there).cpu(), factor @ factor, 1e-3)
    return str(there.device)


def compiled_by_numba(module: str) -> str:
    import_module(module)  # which compiles its kernels
    return "compiled"


def torchvision(device: torch.device) -> str:
    images, transform = photographs(SAMPLES).read()[:8], make_transform(SPEC)
    (pixels,) = torchvision_decoder(device)([images])
    wanted = torch.empty(len(images), 3, SIDE, SIDE)
    for image, row in zip(images, torch.split(wanted, 1), strict=True):
        transform.place(transform.decode(image), row.numpy())
    return differs(pixels, wanted)


def decoder(device: torch.device, name: Decoders) -> str:
    """Load a batch to the device, and compare it with one of the CPU's kernels."""
    if name == "dali" and find_spec("nvidia.dali") is None:
        raise Absent("DALI is not installed")
    shards = packed(photographs(SAMPLES))
    common: dict[str, Any] = {"batch_size": 8, "image": SPEC, "num_workers": 2, "shuffle": False}
    with make_loader(shards, decoder=name, device=device, **common) as loader:
        there = [batch["pixel_values"] for batch in islice(loader, 3)]
        wait(device)
    with make_loader(shards, decoder="cpu", **common) as loader:
        here = [batch["pixel_values"].clone() for batch in islice(loader, 3)]
    return differs(torch.cat(there), torch.cat(here))


def attention(device: torch.device, kernel: str) -> str:
    """Attend forward and backward, and compare with the plain kernel in float32."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if reason := why_not(kernel, device.type, dtype):
        raise Absent(reason)
    layer = Layer(heads=4, kv_heads=2, size=64, dtype=dtype, device=device, memory=1e9)
    batch = uniform(layer, 4, 256)
    got, wanted = (
        attended(name, [x.detach().to(kind) for x in batch.inputs], batch.segments)
        for name, kind in ((kernel, dtype), ("plain", torch.float32))
    )
    for one, other in zip(got, wanted, strict=True):
        same(one.float(), other, 0.05)
    return "as the plain kernel"


def attended(kernel: str, inputs: list[Tensor], segments: Any) -> list[Tensor]:
    """Return the output, and the gradients of queries, keys and values."""
    *leaves, upstream = inputs
    for leaf in leaves:
        leaf.requires_grad_()
    prepared = prepare(segments, len(leaves[0]), kernel)
    out = attend(leaves[0], leaves[1], leaves[2], prepared, kernel)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def compiler(device: torch.device, mode: str) -> str:
    """Compile a small network, and run it forward and backward several times."""
    if mode == "reduce-overhead" and device.type == "cpu":
        raise Absent("CUDA graphs are of a GPU")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    fast = torch.compile(network, mode=mode)
    given = torch.randn(32, 64, device=device)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        network.zero_grad()
        fast(given).square().sum().backward()
    got = [parameter.grad for parameter in network.parameters()]
    network.zero_grad()
    network(given).square().sum().backward()
    for one, parameter in zip(got, network.parameters(), strict=True):
        assert one is not None
        assert parameter.grad is not None
        same(one, parameter.grad, 1e-2)
    return "as uncompiled"


def optimizer(device: torch.device, kind: str) -> str:
    from examples.vlm.techniques import Techniques

    if kind == "8bit" and find_spec("bitsandbytes") is None:
        raise Absent("bitsandbytes is not installed")
    network = nn.Linear(128, 128).to(device)
    before = network.weight.detach().clone()
    techniques = Techniques(optimizer=kind)  # type: ignore[arg-type]
    made = techniques.make_optimizer(network, rate=1e-2, decay=0.1)
    for _ in range(3):
        network(torch.ones(4, 128, device=device)).square().sum().backward()
        made.step()
        techniques.zero(made)
    if torch.equal(before, network.weight):
        raise RuntimeError("the weights did not change")
    return "the weights changed"


def utilization(device: torch.device) -> str:
    """Ask NVML for the GPU's load and memory, as the monitor does."""
    from datapipe.monitor.gpu import find_gpu

    if device.type == "cpu":
        raise Absent("there is no GPU to ask about")
    gpu = find_gpu()
    if gpu is None:
        raise RuntimeError("the monitor finds no GPU, see the log above")
    return f"{gpu.name}: {gpu.sample()}"


def profiler(device: torch.device) -> str:
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device.type == "cuda")]
    with profile(activities=kinds) as seen:
        product(device)
        wait(device)
    events = [event for event in seen.events() or () if event.device_type.name != "CPU"]
    if device.type == "cuda" and not events:
        raise RuntimeError("the profiler saw no kernel")
    return f"{len(events)} events of the device"


def process_group(device: torch.device) -> str:
    from torch import distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device.type == "cuda" else "gloo"
        place = f"file://{Path(folder, 'store')}"
        dist.init_process_group(backend, init_method=place, rank=0, world_size=1)
        try:
            tensor = torch.ones(4, device=device)
            dist.all_reduce(tensor)
            same(tensor.cpu(), torch.ones(4), 0)
        finally:
            dist.destroy_process_group()
    return backend


def same(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Raise an error if the greatest difference, relative to the greatest value, is too large."""
    off = (got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9)
    if not float(off) <= tolerance:
        raise RuntimeError(f"off by {float(off):.3g} of the greatest value, {tolerance:g} allowed")


def differs(got: Tensor, wanted: Tensor) -> str:
    """Return how far pixels are from those of the CPU's kernels, in grey levels."""
    # A grey level is about 0.017 of the standard deviation that the pixels are divided by.
    off = (got.float().cpu() - wanted).abs() * 255 * SPEC.mean_std[1][0]  # type: ignore[index]
    if not float(off.mean()) < 2:
        raise RuntimeError(f"off by {float(off.mean()):.3g} grey levels on average")
    return f"off by {float(off.mean()):.3f} grey levels on average, {float(off.max()):.1f} at most"


if __name__ == "__main__":
    main()
