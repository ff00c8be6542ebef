"""Measurements of `benchmarks.gpu`: copies, decoders, and the loader beside a training step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from benchmarks.common import Run, Spread
from benchmarks.gpu_decoders import BATCH, MEAN_STD, SIDE, Decoder
from datapipe import ImageSpec, make_loader
from datapipe.errors import PlanError

_COPIES = 50
_LATENCIES = 30  # batches of each decoder
_STEPS = 100

Decoders = Literal["cpu", "dali"]
DECODERS: tuple[Decoders, ...] = ("cpu", "dali")


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_copies(device: torch.device) -> dict[str, Spread]:
    """Milliseconds that a batch takes to the device, from page-locked and from other memory."""
    found = {}
    for dtype in (torch.uint8, torch.float32):
        plain = torch.ones(BATCH, 3, SIDE, SIDE, dtype=dtype)
        pinned = plain.pin_memory() if device.type == "cuda" else plain
        there = torch.empty_like(plain, device=device)
        for kind, host in (("page-locked", pinned), ("pageable", plain)):
            times = []
            for _ in range(_COPIES + 3):
                wait(device)
                begun = time.perf_counter()
                there.copy_(host, non_blocking=True)
                wait(device)
                times.append(1e3 * (time.perf_counter() - begun))
            name = f"{str(dtype).removeprefix('torch.')}, {kind}"
            found[name] = Spread.of(times[3:])
            print(f"copy {name}: {found[name].median:.3f} ms", file=sys.stderr, flush=True)
    return found


def prepare(
    name: str,
    make: Callable[[], Decoder],
    made: dict[str, Decoder],
    jpegs: Sequence[bytes],
    device: torch.device,
) -> Callable[[], Run]:
    """Make a decoder, remember it, and return what decodes all photographs once."""
    decoder = made[name] = make()
    batches = whole_batches(jpegs)

    def run() -> Run:
        wait(device)
        begun = time.perf_counter()
        for batch in batches:
            decoder.decode(batch)
        wait(device)
        return Run(samples=len(batches) * BATCH, seconds=time.perf_counter() - begun)

    return run


def whole_batches(jpegs: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Yield the photographs in full batches."""
    return [jpegs[at : at + BATCH] for at in range(0, len(jpegs) - BATCH + 1, BATCH)]


def measure_latency(
    able: dict[str, Decoder], jpegs: Sequence[bytes], device: torch.device
) -> dict[str, Spread]:
    """Milliseconds from a batch's bytes to the normalised tensor, nothing else going on."""
    times: dict[str, list[float]] = {name: [] for name in able}
    for batch in whole_batches(jpegs)[:_LATENCIES]:
        for name, decoder in able.items():
            wait(device)
            begun = time.perf_counter()
            decoder.decode(batch)
            wait(device)
            times[name].append(1e3 * (time.perf_counter() - begun))
    return {name: Spread.of(values) for name, values in times.items()}


def measure_loaders(
    shards: Path, device: torch.device, *, workers: int, step: float
) -> dict[str, dict[str, float]]:
    """`measure_loader` with each decoder that is installed, by name."""
    found: dict[str, dict[str, float]] = {}
    for decoder in DECODERS:
        try:
            found[decoder] = measure_loader(shards, device, decoder, workers=workers, step=step)
            print(f"loader, {decoder}: {json.dumps(found[decoder])}", file=sys.stderr, flush=True)
        except PlanError as error:
            print(f"loader, {decoder}: not measured: {error}", file=sys.stderr, flush=True)
    return found


def measure_loader(
    shards: Path, device: torch.device, decoder: Decoders, *, workers: int, step: float
) -> dict[str, float]:
    """Measure the loader as users call it: alone, and beside a training step.

    Returns:
        img/s alone, and milliseconds that the main thread waits for a batch while the device is
        busy for `step` seconds with each: median, 99th percentile and most.

    Raises:
        PlanError: the decoder is not installed.
    """
    loader = make_loader(
        shards,
        batch_size=BATCH,
        image=ImageSpec(size=SIDE, normalize=MEAN_STD),
        decoder=decoder,
        device=device,
        num_workers=workers,
        drop_last=True,
    )
    skipped = workers + 1  # begun before the first was asked for
    images, since = 0, 0.0
    for number, batch in enumerate(loader, start=1):
        if number > skipped:
            images += len(batch["pixel_values"])
        elif number == skipped:
            wait(device)
            since = time.perf_counter()
    wait(device)
    alone = images / (time.perf_counter() - since)

    train = training_step(device, step)
    waits: list[float] = []
    fed = iter(loader)
    while len(waits) < _STEPS + skipped:
        begun = time.perf_counter()
        taken = next(fed, None)
        if taken is None:
            break
        waits.append(1e3 * (time.perf_counter() - begun))
        train()
    del fed
    loader.close()
    waits = sorted(waits[skipped:])
    return {
        "img/s": alone,
        "step_ms": 1e3 * step,
        "wait_ms_median": waits[len(waits) // 2],
        "wait_ms_p99": waits[min(len(waits) - 1, len(waits) * 99 // 100)],
        "wait_ms_most": waits[-1],
    }


def training_step(device: torch.device, seconds: float) -> Callable[[], None]:
    """Work that takes the device so long, and waits for it as `loss.item()` does."""
    if device.type == "cpu":
        return partial(time.sleep, seconds)
    matrix = torch.ones(4096, 4096, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(matrix)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix, out=out)
        wait(device)

    products(20)
    begun = time.perf_counter()
    products(200)
    return partial(products, max(1, round(200 * seconds / (time.perf_counter() - begun))))
