"""Training from the naive loop up, a technique a rung: what each of them brings.

    python -m benchmarks.ladder --json benchmarks/results/ladder-cpu.json

Every rung is a run of `python -m examples.vlm.train` in its own process, with the options of the
rungs before it and its own. Rounds go through all rungs in turn; ratios are taken within a round.
Tokens are those of samples, without padding. Rungs with several processes are started by torchrun;
on the CPU they share the cores. If a rung cannot run here, the reason is printed, and the others
continue. Results are written after every run. Compare losses only between rungs of equal batches.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from benchmarks.chats import chats, describe
from benchmarks.common import command, machine, parse_args, show_as, write_json
from benchmarks.gpu.aims import Bar, as_json, show
from benchmarks.ladder.ratios import ratios
from benchmarks.training import train
from examples.vlm.model.config import MODELS


class Rung(NamedTuple):
    """A technique that is added to those before it.

    Attributes:
        options: of `examples.vlm.train`, by name; None takes one away again.
        aside: True if the rungs after it do not include it: another way to the same end.
        needs: package that it imports.
        processes: number that train together.
    """

    name: str
    options: dict[str, Any]
    aside: bool = False
    needs: str = ""
    processes: int = 1


NAIVE = {
    "batch-size": 4,
    "num-workers": 0,
    "prefetch": 1,
    "precision": "fp32",
    "optimizer": "loop",
    "attention": "sdpa",
    "zero-gradients": True,
    "wait-for-losses": True,
    "copy-late": True,
}


def rungs(
    gpu: bool, *, batch: int, pack: int, images: int, workers: int, processes: int
) -> list[Rung]:
    """Return the rungs: on the CPU without those that need a GPU.

    There compiled kernels save no launches, and constant shapes cost their padding: an aside.
    """
    packed = {"batch-size": None, "buckets": None, "pack": pack, "attention": "auto"}
    prefetch: dict[str, Any] = {"prefetch": 3} | ({"copy-late": None} if gpu else {})
    lazily = {"zero-gradients": None, "wait-for-losses": None}
    cache = {"device-cache": "8GB"} if gpu else {"cache": "4GB"}
    # The modes of `torch.compile` that do something here, the best known one last.
    compiled = [
        Rung(
            f"torch.compile, {mode}, constant shapes",
            {"compile": mode, "static-shapes": True, "max-images": images},
            aside=not gpu or mode != "default",
        )
        for mode in ("max-autotune", *["reduce-overhead"] * gpu, "default")
    ]
    return [
        Rung("naive loop: batch 4, no workers, float32, padded", NAIVE),
        Rung("workers", {"num-workers": workers}),
        Rung("page-locked and prefetch" if gpu else "prefetch", prefetch),
        Rung(f"batch {batch}", {"batch-size": batch}),
        *([Rung("TF32", {"tf32": True})] if gpu else []),
        Rung("bfloat16 autocast", {"precision": "bf16"}),
        Rung("fused AdamW", {"optimizer": "fused"}),
        Rung("fewer synchronisations", lazily),
        Rung("length buckets", {"buckets": 8}, aside=True),
        Rung(f"packs of {pack:,} tokens", packed),
        *compiled,
        Rung("images on the device" if gpu else "images in memory", cache),
        *asides(gpu, processes),
    ]


def asides(gpu: bool, processes: int) -> list[Rung]:
    """Return techniques that are added to the whole ladder, each alone."""
    images = dict.fromkeys(("cache", "device-cache", "static-shapes", "compile"))
    single = [
        Rung("recompute all", {"recompute": "all"}),
        Rung("recompute every 2nd block", {"recompute": "2"}),
        Rung("recompute 2 runs of blocks", {"recompute": "sequential:2"}),
        Rung("4 batches a step", {"accumulate": 4}),
        Rung("data on the device", {**images, "resident": "64GB" if gpu else "4GB"}),
        Rung("LoRA of rank 8", {"lora": 8}, needs="peft"),
        Rung("8-bit AdamW", {"optimizer": "8bit"}, needs="bitsandbytes"),
    ]
    together = {
        "DDP": {"parallel": "ddp"},
        "DDP, bfloat16 hook": {"parallel": "ddp", "hook": "bf16"},
        "DDP, PowerSGD": {"parallel": "ddp", "hook": "powersgd"},
        "FSDP": {"parallel": "fsdp"},
    }
    several = [
        Rung(f"{name}, {processes} processes", options, processes=processes)
        for name, options in together.items()
        if processes > 1
    ]
    return [rung._replace(aside=True) for rung in (*single, *several)]


def options_of(ladder: Sequence[Rung], number: int) -> dict[str, Any]:
    """All options of a rung: its own and those of the rungs it stands on."""
    chosen: dict[str, Any] = {}
    for rung in [*(r for r in ladder[:number] if not r.aside), ladder[number]]:
        chosen |= rung.options
    return {name: value for name, value in chosen.items() if value is not None}


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = command("ladder", __doc__)
    add = parser.add_argument
    add("--model", choices=tuple(MODELS), default="base" if gpu else "tiny")
    add("--samples", type=int, default=8192 if gpu else 1024, help="(default: %(default)s)")
    add("--steps", type=int, default=60 if gpu else 16, help="that count (default: %(default)s)")
    add("--warm-up", type=int, default=15 if gpu else 4, help="steps (default: %(default)s)")
    add("--rounds", type=int, default=1 if gpu else 3, help="(default: %(default)s)")
    add("--batch-size", type=int, default=16 if gpu else 8, help="large (default: %(default)s)")
    add("--pack", type=int, default=8192 if gpu else 2048, help="tokens (default: %(default)s)")
    add("--images", type=int, default=32 if gpu else 12, help="of a pack of constant shape")
    add("--workers", type=int, default=12 if gpu else 1, help="threads (default: %(default)s)")
    several = "of the rungs with several, 1 for none (default: %(default)s)"
    devices = torch.cuda.device_count() if gpu else 2
    add("--processes", type=int, default=devices, help=several)
    add("--only", nargs="+", metavar="TEXT", help="rungs whose names hold one of these")
    part = "rungs: those on the way up, or the last one with those aside (default: all)"
    add("--part", choices=("all", "way", "asides"), default="all", help=part)
    options = parse_args(parser)

    names = ("pack", "images", "workers", "processes")
    given = {name: vars(options)[name] for name in names}
    ladder = rungs(gpu, batch=options.batch_size, **given)
    last = max(number for number, rung in enumerate(ladder) if not rung.aside)
    numbers = [
        number
        for number, rung in enumerate(ladder)
        if (not options.only or any(text in rung.name for text in options.only))
        and (options.part == "all" or rung.aside == (options.part == "asides") or number == last)
    ]
    if not numbers:
        parser.error(f"--only {options.only}: the rungs are {[rung.name for rung in ladder]}")
    shards, tokenizer = chats(options.samples)
    vision = MODELS[options.model].vision
    steps = options.steps + options.warm_up
    common = {"tokenizer": tokenizer, "model": options.model, "steps": steps, "lr": 3e-4}
    common |= {"warm-up": options.warm_up, "log-every": steps, "max-length": options.pack}
    where = machine("torch", "datapipe", "transformers", cache="warm")
    if gpu:
        where["gpu"] = torch.cuda.get_device_name()
    content: dict[str, Any] = {
        "title": f"Ladder of {options.model}, {'GPU' if gpu else 'CPU'}: "
        f"{describe(shards, tokenizer, vision.image_tokens)}, an image of {vision.image_size} "
        f"pixels each; {options.steps} steps after {options.warm_up}, {options.rounds} rounds",
        "machine": where,
        "rungs": [rung._asdict() for rung in ladder],
    }
    runs: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    failed: dict[str, str] = {}
    results: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for number in numbers:
            rung = ladder[number]
            if rung.name in failed:
                continue
            try:
                if rung.needs and find_spec(rung.needs) is None:
                    raise RuntimeError(f"{rung.needs} is not installed: pip install {rung.needs}")
                chosen = common | options_of(ladder, number)
                runs[number].append(train(shards, chosen, processes=rung.processes))
            except RuntimeError as error:
                failed[rung.name] = str(error)
                runs[number].clear()
                said = f"{rung.name} cannot run: {failed[rung.name].splitlines()[-1]}"
            else:
                rate = runs[number][-1]["tokens_per_s"]
                said = f"round {turn + 1} of {options.rounds}: {rung.name}: {rate:,.0f} tokens/s"
            print(said, file=sys.stderr, flush=True)
            results = whole_rounds(ladder, runs)
            content |= {"failed": failed, "results": results}
            content |= as_json(aims(results) if gpu else [], rehearsal=False)
            write_json(options.json, content)
    if not results:
        sys.exit("no rung could be climbed")
    show_as("ladder", content)
    for name, reason in failed.items():
        print(f"{name} cannot run: {reason.splitlines()[-1]}")
    show(aims(results), rehearsal=not gpu)


def whole_rounds(
    ladder: Sequence[Rung], runs: dict[int, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the rungs that were climbed, with as many runs each as all of them have."""
    rounds = min((len(each) for each in runs.values() if each), default=0)
    return [
        {"name": ladder[number].name, "aside": ladder[number].aside, "runs": each[:rounds]}
        for number, each in runs.items()
        if each
    ]


def aims(results: Sequence[dict[str, Any]]) -> list[Bar]:
    way = [number for number, result in enumerate(results) if not result["aside"]]
    if not way or not results[0]["name"].startswith("naive"):
        return []
    faster = ratios(results, way[-1])[1].median
    return [Bar("last rung, x the naive loop", faster, 6.0, most=False)]


if __name__ == "__main__":
    main()
