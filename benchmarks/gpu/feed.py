"""Feeding a GPU: copies to it, whether they hide behind the work, and who waits for data.

    python -m benchmarks.gpu.feed --json feed.json

Four parts, each written when it is done: the time of copies; steps with and without a batch copied
beside them; the loader alone and beside a training step, by decoder and workers; and the reference
model on packs, by workers, whose report says which share of the time it waited, and the GPU worked.
`--only` takes some of them. A part that fails is named, and the others go on; the command then ends
with an error. `--rehearse` runs all of it on the CPU, to see that it runs: its figures mean
nothing.
"""

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import median_high
from typing import Any

import torch

from benchmarks.chats import chats
from benchmarks.common import Result, command, machine, parse_args, report, write_json
from benchmarks.data import packed, photographs
from benchmarks.gpu.aims import Bar, as_json, describe, find_device, show
from benchmarks.gpu.loading import DECODERS, measure_copies, measure_loader, measure_overlap
from benchmarks.training import train
from datapipe.cpus import available_cpus
from datapipe.errors import PlanError

PROCESSES = ", processes"
"""Behind the name of a model that processes load for; without it, workers are those by default."""

_PARTS = ("copies_ms", "overlap", "loader", "reference")

_FIGURES = (
    *("tokens_per_s", "samples_per_s", "fill", "step_p50", "step_p99"),
    *("wait_share", "gpu_busy", "mfu", "hfu", "memory", "verdict"),
)


def main() -> None:
    options = parse(command("gpu.feed", __doc__))
    device = find_device(rehearse=options.rehearse)
    where = machine("torch", "nvidia-dali-cuda130", "datapipe", cache="warm")
    content: dict[str, Any] = {"machine": where | {"gpu": describe(device)}}
    failed = []
    every: dict[str, Callable[[], dict[str, Any]]] = {
        "copies_ms": lambda: {n: one._asdict() for n, one in measure_copies(device).items()},
        "overlap": partial(overlap, options, device),
        "loader": partial(loaders, options, device),
        "reference": partial(references, options, device),
    }
    for name in options.only or every:
        print(f"--- {name}", flush=True)
        try:
            content[name] = every[name]()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            content[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed.append(name)
        content |= as_json(aims(content), rehearsal=options.rehearse)
        write_json(options.json, content)
    show(aims(content), rehearsal=options.rehearse)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    add = parser.add_argument
    add("--samples", type=int, help="photographs, and samples of text (default: 4096)")
    add("--only", nargs="+", choices=_PARTS, help="parts to measure (default: all)")
    add("--rounds", type=int, help="of steps with and without copies (default: 20)")
    add("--workers", type=int, default=available_cpus(), help="at most (default: all cores)")
    add("--pack", type=int, help="tokens of a pack of the reference (default: 32768)")
    add("--step-ms", type=float, help="of a training step beside the loader (default: 50)")
    add("--models", nargs="*", metavar="NAME", help="of the reference (default: base)")
    add("--steps", type=int, help="of the reference, 15 more before they count (default: 60)")
    add("--rehearse", action="store_true", help="on the CPU, where no figure means anything")
    options = parse_args(parser)
    names = ("samples", "rounds", "step_ms", "models", "pack", "steps")
    # A pack of 8,192 tokens is too little work for an H100.
    usual, small = (4096, 20, 50.0, ["base"], 32768, 60), (256, 1, 5.0, ["tiny"], 1024, 2)
    for name, value in zip(names, small if options.rehearse else usual, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    # The loader is measured after batches that were begun before the first was asked for.
    if options.samples < 64 * (options.workers + 2):
        parser.error(f"take at least {64 * (options.workers + 2)} --samples")
    return options


def overlap(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measure what copies add to a step, in milliseconds, and keep every round."""
    results = measure_overlap(device, step=options.step_ms / 2e3, rounds=options.rounds)
    where = machine("torch", cache="not used")
    report("Steps", results, where=where, references=("steps alone",), unit="steps/s", path=None)
    more = {result.name: added(result, results[0]) for result in results[1:]}
    return {"added_ms": more, "rounds": [asdict(result) for result in results]}


def added(result: Result, alone: Result) -> float:
    """Milliseconds of a step more than `alone`, the median of the rounds."""
    pairs = zip(result.runs, alone.runs, strict=True)
    return median_high(1e3 * (1 / own.rate - 1 / other.rate) for own, other in pairs)


def loaders(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measure the loader with each decoder that is installed, and by kind and number of workers."""
    shards = packed(photographs(options.samples))
    step, most = options.step_ms / 1e3, options.workers
    ways: dict[str, dict[str, Any]] = {name: {"decoder": name} for name in DECODERS}
    # Many threads hold the interpreter's lock while the main thread sends a batch.
    counts = sorted({max(1, most // 4), max(1, most // 2), most})
    kinds = [*(("threads", count) for count in counts), ("processes", max(1, most - 1))]
    for kind, workers in kinds:
        ways[f"cpu, {workers} {kind}"] = {"num_workers": workers, "workers": kind}
    found: dict[str, Any] = {}
    for name, options_of in ways.items():
        try:
            found[name] = measure_loader(shards, device, step, **options_of)
        except PlanError as error:
            found[name] = {"missing": str(error)}
        print(f"{name}: {found[name]}", flush=True)
    return found


def references(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train the reference models on packs, in bfloat16 on a GPU, as users would, by workers."""
    shards, tokenizer = chats(options.samples)
    warm_up = 1 if options.rehearse else 15
    shared = {
        "tokenizer": tokenizer,
        "device": device.type,
        "precision": "fp32" if options.rehearse else "bf16",  # a CPU may have to emulate it
        "pack": options.pack,
        "max-length": min(options.pack, 8192),
        "overlong": "truncate",
        "lr": 3e-4,
        "steps": options.steps + warm_up,
        "warm-up": warm_up,
        "log-every": options.steps + warm_up,
    }
    few, most = max(1, options.workers // 4), max(1, options.workers - 1)
    ways: dict[str, dict[str, Any]] = {
        "": {"prefetch": 3},
        f", {few} threads": {"num-workers": few, "prefetch": 3},
        # Each process prepares packs of its own: more would hide a loader that is too slow.
        PROCESSES: {"workers": "processes", "num-workers": most, "prefetch": 1},
    }
    found = {}
    for model in options.models:
        for name, workers in ways.items():
            run = train(shards, shared | workers | {"model": model})
            found[model + name] = one = {figure: run[figure] for figure in _FIGURES}
            one |= {"losses": [run["losses"][0], run["losses"][-1]], "options": workers}
            print(f"{model}{name}: {one}", flush=True)
    return found


def aims(content: dict[str, Any]) -> list[Bar]:
    def figure(*path: str) -> float | None:
        found: Any = content
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return None if found is None else float(found)

    bars = []
    for name in ("uint8, page-locked", "float32, page-locked"):
        longest = figure("copies_ms", name, "median")
        bars.append(Bar(f"copy of a batch of 32, {name}, ms", longest, 1.0))
    shown = figure("overlap", "added_ms", "a batch copied ahead")  # of float32, as the last copy
    share = None if shown is None or not longest else max(0.0, shown / longest)
    bars.append(Bar("share of a float32 copy that is not hidden behind a step", share, 0.1))
    for name in DECODERS:
        waited = figure("loader", name, "wait_ms_median")
        bars.append(Bar(f"wait of the main thread, decoder {name}, median, ms", waited, 5.0))
    for name in ("base", f"base{PROCESSES}"):
        waited, busy = (figure("reference", name, what) for what in ("wait_share", "gpu_busy"))
        bars.append(Bar(f"{name}, share of the time waiting", waited, 0.01))
        about = f"{name}, share of the time in which the GPU worked"
        bars.append(Bar(about, busy, 0.95, most=False))
    return bars


if __name__ == "__main__":
    main()
