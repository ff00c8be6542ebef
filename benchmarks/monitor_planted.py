"""Loops with a planted loss, on two processes: what the monitor says against what was planted.

    python -m benchmarks.monitor_planted

Two gloo processes with one thread each train with DistributedDataParallel. Exchange is planted by
many small buckets; the truth is the step with exchange against the same step in `no_sync()`. A slow
rank is planted by sleep in its step, or before its batch; the truth is that sleep.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import datapipe
from benchmarks.common import command, machine, parse_args, write_json

_STEPS = 96  # three of which are recorded
_WARM_UP = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loop with a planted loss.

    Attributes:
        expected: the verdict of both ranks, or of each.
        width, layers, rows: of the model and its batch.
        bucket_mb: size of DDP's buckets.
        late, late_batch: seconds that the second rank sleeps in each step, and before each batch.
    """

    expected: tuple[str, ...]
    width: int = 32
    layers: int = 2
    rows: int = 4
    bucket_mb: float = 25.0
    late: float = 0.0
    late_batch: float = 0.0


CASES = {
    "exchange in 200 buckets": Case(expected=("communication",), layers=100, bucket_mb=1e-4),
    "a slow rank": Case(expected=("straggler",), late=0.04),
    "a rank that waits for data": Case(expected=("straggler", "data"), late_batch=0.04),
    "compute": Case(expected=("compute",), width=256, rows=4000),
}


def main() -> None:
    parser = command("monitor_planted", __doc__)
    options = parse_args(parser)
    with TemporaryDirectory() as folder, get_context("spawn").Pool(2) as ranks:
        found = ranks.starmap(_rank, [(rank, folder) for rank in range(2)], chunksize=1)
    print(f"{'loop':28} {'rank':>4} {'planted':>8} {'found':>8}  verdict")
    for name, case in CASES.items():
        for rank in range(2):
            result = found[rank][name]
            right = result["verdict"] == case.expected[min(rank, len(case.expected) - 1)]
            print(
                f"{name:28} {rank:>4} {result['planted']:>8.0%} {result['found']:>8.0%}  "
                f"{result['verdict']}{'' if right else ', WRONG'}"
            )
    where = machine("datapipe", "torch", cache="not used")
    write_json(options.json, {"machine": where, "ranks": found})


def _rank(rank: int, folder: str) -> dict[str, Any]:
    """Run all cases as one of two ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    results = {name: _measure(case, rank) for name, case in CASES.items()}
    dist.destroy_process_group()
    return results


def _measure(case: Case, rank: int) -> dict[str, Any]:
    step = _step(case)
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(40):
        dist.barrier()
        begun = time.perf_counter()
        step(number % 2 == 0)
        took[number % 2 == 0].append(time.perf_counter() - begun)
    with_exchange, alone = (statistics.median(took[exchange]) for exchange in (True, False))
    monitor = datapipe.Monitor(warmup=_WARM_UP)
    for _ in monitor(_batches(case.late_batch * rank)):
        with monitor.step():
            time.sleep(case.late * rank)
            step(True)
    dist.barrier()
    report = monitor.report()
    dist.barrier()
    sampled = report.sampled
    assert sampled is not None
    assert sampled.ranks is not None
    late = case.late + case.late_batch
    planted = late / (late + with_exchange) if late else 1 - alone / with_exchange
    waiting = sampled.ranks.holding if rank else sampled.ranks.waiting
    found = waiting if late else sampled.exchange
    return {"planted": planted, "found": found, "verdict": report.verdict.kind}


def _step(case: Case) -> Callable[[bool], None]:
    """Return a training step that exchanges gradients, or does not."""
    layers = (nn.Linear(case.width, case.width) for _ in range(case.layers))
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=case.bucket_mb)
    inputs = torch.randn(case.rows, case.width)

    def step(exchange: bool) -> None:
        with nullcontext() if exchange else model.no_sync():
            model(inputs).square().mean().backward()
        model.zero_grad()

    return step


def _batches(late: float) -> Iterator[int]:
    for number in range(_STEPS):
        time.sleep(late)
        yield number


if __name__ == "__main__":
    main()
