"""Measurements of `benchmarks.gpu.feed`: copies, and the loader beside a training step."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.common import Contestant, Result, Run, Spread, compete
from benchmarks.gpu.decoders import SIDE, SPEC
from datapipe import make_loader
from datapipe.loader.device.prefetcher import DevicePrefetcher, Sent

BATCH = 32
_COPIES = 50
_STEPS = 100
_OVERLAPPED = 10  # steps of a round: few, so that a GPU that becomes warm slows all ways alike

Decoders = Literal["cpu", "dali"]
DECODERS: tuple[Decoders, ...] = ("cpu", "dali")


def wait(device: torch.device) -> None:
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
            print(f"copy of {BATCH} images, {name}: {found[name].median:.3f} ms", flush=True)
    return found


def measure_overlap(device: torch.device, *, step: float, rounds: int) -> list[Result]:
    """Time steps without copies, with a batch copied ahead in each, and with one copied in each.

    The device always has work, so that what a copy adds is not the time of the calls for it.
    """
    pin = device.type == "cuda"
    hosts = [torch.ones(BATCH, 3, SIDE, SIDE, pin_memory=pin) for _ in range(4)]
    feeder = DevicePrefetcher(device)
    train = training_step(device, step, waits=False)
    there = hosts[0].to(device)

    def ahead() -> Iterator[Tensor]:
        sent: Sent | None = None
        for host in cycle(hosts):
            before, sent = sent, feeder.send({"pixel_values": host})
            if before is not None:
                yield feeder.receive(before)["pixel_values"]

    def inside() -> Iterator[Tensor]:
        return (host.to(device) for host in cycle(hosts))

    def runner(batches: Callable[[], Iterator[Tensor]]) -> Callable[[], Run]:
        def steps(fed: Iterator[Tensor]) -> None:
            for batch in fed:
                batch[0, 0, 0, 0].add_(0)  # on the stream that trains, behind the copy
                train()
            wait(device)

        def run() -> Run:
            fed = batches()
            steps(islice(fed, 1))  # nothing hides the first copy
            begun = time.perf_counter()
            steps(islice(fed, _OVERLAPPED))
            return Run(samples=_OVERLAPPED, seconds=time.perf_counter() - begun)

        return run

    ways: dict[str, Callable[[], Iterator[Tensor]]] = {
        "steps alone": partial(repeat, there),
        "a batch copied ahead": ahead,
        "copied in the step": inside,
    }
    return compete([Contestant(name, partial(runner, way)) for name, way in ways.items()], rounds)


def measure_loader(
    shards: Path, device: torch.device, step: float, **options: Any
) -> dict[str, Any]:
    """Measure the loader with `options` of its decoder and workers, alone and beside a step.

    Returns:
        Number of workers, img/s alone, and milliseconds that the main thread waits for a batch
        while the device is busy for `step` seconds with each: median, 99th percentile and most.

    Raises:
        PlanError: the decoder is not installed.
    """
    loader = make_loader(
        shards, batch_size=BATCH, image=SPEC, device=device, drop_last=True, **options
    )
    skipped = loader.options.num_workers + 1  # begun before the first was asked for
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
    begun = time.perf_counter()
    for _ in islice(loader, _STEPS + skipped):
        waits.append(1e3 * (time.perf_counter() - begun))
        train()
        begun = time.perf_counter()
    loader.close()
    waits = sorted(waits[skipped:])
    return {
        "workers": loader.options.num_workers,
        "img/s": alone,
        "step_ms": 1e3 * step,
        "wait_ms_median": waits[len(waits) // 2],
        "wait_ms_p99": waits[min(len(waits) - 1, len(waits) * 99 // 100)],
        "wait_ms_most": waits[-1],
    }


def training_step(
    device: torch.device, seconds: float, *, waits: bool = True
) -> Callable[[], None]:
    """Work that takes the device so long; by default it waits for it, as `loss.item()` does."""
    if device.type == "cpu":
        return partial(time.sleep, seconds)
    matrix = torch.randn(4096, 4096, device=device).to(torch.bfloat16)
    out = torch.empty_like(matrix)

    def products(count: int, waits: bool = waits) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix, out=out)
        if waits:
            wait(device)

    products(20, waits=True)
    begun = time.perf_counter()
    products(200, waits=True)
    return partial(products, max(1, round(200 * seconds / (time.perf_counter() - begun))))
