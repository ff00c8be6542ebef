"""Training from the naive loop up, a technique a rung: what each of them brings.

    python -m benchmarks.ladder --json benchmarks/results/ladder-cpu.json --plot docs/ladder-cpu.svg

Every rung is a run of `python -m examples.vlm.train` in a process of its own, with the options of
the rungs before it and its own. Rounds go through all rungs in turn; ratios are taken within a
round. Tokens are those of samples: what padding costs is in the rate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.chats import chats, describe
from benchmarks.common import Spread, machine
from examples.vlm.config import MODELS


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A technique that is added to those before it.

    Attributes:
        name: short.
        options: of `examples.vlm.train`, by name; None takes one away again.
        aside: whether the rungs after it go on without it: another way to the same end.
    """

    name: str
    options: dict[str, Any]
    aside: bool = False


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


def rungs(gpu: bool, *, batch: int, pack: int, images: int, workers: int) -> list[Rung]:
    """Return the rungs: on the CPU without those that need a GPU.

    There compiled kernels save no launches, and constant shapes cost their padding: an aside.
    """
    packed = {"batch-size": None, "buckets": None, "pack": pack, "attention": "auto"}
    prefetch: dict[str, Any] = {"prefetch": 3} | ({"copy-late": None} if gpu else {})
    cache = {"device-cache": "8GB"} if gpu else {"cache": "4GB"}
    return [
        Rung(name="naive loop: batch 4, no workers, float32, padded", options=NAIVE),
        Rung(name="workers", options={"num-workers": workers}),
        Rung(name="page-locked and prefetch" if gpu else "prefetch", options=prefetch),
        Rung(name=f"batch {batch}", options={"batch-size": batch}),
        *([Rung(name="TF32", options={"tf32": True})] if gpu else []),
        Rung(name="bfloat16 autocast", options={"precision": "bf16"}),
        Rung(name="fused AdamW", options={"optimizer": "fused"}),
        Rung(
            name="fewer synchronisations",
            options={"zero-gradients": None, "wait-for-losses": None},
        ),
        Rung(name="length buckets", options={"buckets": 8}, aside=True),
        Rung(name=f"packs of {pack:,} tokens", options=packed),
        Rung(
            name="torch.compile, constant shapes",
            options={"compile": True, "static-shapes": True, "max-images": images},
            aside=not gpu,
        ),
        Rung(name="images on the device" if gpu else "images in memory", options=cache),
    ]


def options_of(ladder: Sequence[Rung], number: int) -> dict[str, Any]:
    """All options of a rung: its own and those of the rungs it stands on."""
    chosen: dict[str, Any] = {}
    for rung in [*(r for r in ladder[:number] if not r.aside), ladder[number]]:
        chosen |= rung.options
    return {name: value for name, value in chosen.items() if value is not None}


def climb(common: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """Train once; what it measured.

    Raises:
        RuntimeError: it failed, with the end of what it said.
    """
    command = [sys.executable, "-m", "examples.vlm.train", str(common["shards"]), "--json", "-"]
    for name, value in {**common, **chosen}.items():
        if name != "shards":
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)["report"]
    return report


def main() -> None:
    """Parse the command line, climb, print, write and draw."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ladder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    add("--only", nargs="+", metavar="TEXT", help="rungs whose names hold one of these")
    add("--json", type=Path, metavar="FILE", help="also write every run to this file")
    add("--plot", type=Path, metavar="FILE", help="also draw the ladder")
    options = parser.parse_args()

    ladder = rungs(
        gpu,
        batch=options.batch_size,
        pack=options.pack,
        images=options.images,
        workers=options.workers,
    )
    numbers = [
        number
        for number, rung in enumerate(ladder)
        if not options.only or any(text in rung.name for text in options.only)
    ]
    if not numbers:
        parser.error(f"--only {options.only}: the rungs are {[rung.name for rung in ladder]}")
    shards, tokenizer = chats(options.samples)
    vision = MODELS[options.model].vision
    common = {
        "shards": shards,
        "tokenizer": tokenizer,
        "model": options.model,
        "steps": options.steps + options.warm_up,
        "warm-up": options.warm_up,
        "log-every": options.steps + options.warm_up,
        "max-length": options.pack,
        "lr": 3e-4,
    }
    runs: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    failed: dict[int, str] = {}
    for turn in range(options.rounds):
        for number in numbers:
            if number in failed:
                continue
            try:
                report = climb(common, options_of(ladder, number))
            except RuntimeError as error:
                failed[number] = str(error)
                print(f"{ladder[number].name} failed: {error}", file=sys.stderr, flush=True)
                continue
            runs[number].append(report)
            print(
                f"round {turn + 1} of {options.rounds}: {ladder[number].name}: "
                f"{report['tokens_per_s']:,.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    results = [
        {"name": ladder[number].name, "aside": ladder[number].aside, "runs": runs[number]}
        for number in numbers
        if number not in failed
    ]
    if not results:
        sys.exit("no rung could be climbed")
    where = machine("torch", "datapipe", "transformers", cache="warm")
    if gpu:
        where["gpu"] = torch.cuda.get_device_name()
    title = (
        f"Ladder of {options.model}, {'GPU' if gpu else 'CPU'}: "
        f"{describe(shards, tokenizer, vision.image_tokens)}, an image of {vision.image_size} "
        f"pixels each; {options.steps} steps after {options.warm_up}, {options.rounds} rounds"
    )
    print(table(title, where, results))
    for number, reason in failed.items():
        print(f"\n{ladder[number].name}: failed: {reason.splitlines()[-1]}")
    content = {
        "title": title,
        "machine": where,
        "rungs": [asdict(rung) for rung in ladder],
        "failed": {ladder[number].name: reason for number, reason in failed.items()},
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**content, "results": results}, indent=1) + "\n")
    if options.plot:
        draw(title, results, options.plot)


def ratios(results: Sequence[dict[str, Any]], number: int) -> tuple[Spread | None, Spread]:
    """Tokens a second against the rung before, and against the first, within each round."""

    def against(other: int) -> Spread:
        pairs = zip(results[number]["runs"], results[other]["runs"], strict=True)
        return Spread.of([own["tokens_per_s"] / its["tokens_per_s"] for own, its in pairs])

    before = [i for i in range(number) if not results[i]["aside"]]
    return (against(before[-1]) if before else None), against(0)


def table(title: str, where: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """Format the ladder as Markdown."""
    gpu = f"{where['gpu']}; " if "gpu" in where else ""
    lines = [
        f"\n{title}",
        f"{gpu}{where['cpu']}, {where['cores']} cores; load at the end {where['load']}\n",
        "| rung | samples/s | tokens/s | x the one before | x the first | no padding | step P50, "
        "P99, ms | waiting | GPU busy | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, result in enumerate(results):

        def middle(name: str, runs: Sequence[dict[str, Any]] = result["runs"]) -> float:
            return Spread.of([run[name] for run in runs]).median

        before, first = ratios(results, number)
        steps = f"{middle('step_p50') * 1e3:,.0f}, {middle('step_p99') * 1e3:,.0f}"
        memory = Spread.of([run["memory"]["peak"] for run in result["runs"]]).median
        cells = [
            ("(aside) " if result["aside"] else "") + result["name"],
            f"{middle('samples_per_s'):,.1f}",
            f"{middle('tokens_per_s'):,.0f}",
            _ratio(before) if before else "",
            _ratio(first),
            f"{middle('fill'):.1%}",
            steps,
            f"{middle('wait_share'):.2%}",
            f"{middle('gpu_busy'):.1%}" if "gpu" in where else "-",
            f"{memory / 1e9:.2f} GB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(spread: Spread) -> str:
    if spread.low == spread.high:
        return f"{spread.median:.2f}"
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def draw(title: str, results: Sequence[dict[str, Any]], path: Path) -> None:
    """Tokens a second of every rung as bars, the first at the top; padding shown behind them."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "datapipe"  # the same data give the same file
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(results)), layout="constrained")
    axes = figure.subplots()
    names = [("(aside) " if r["aside"] else "") + r["name"] for r in results]
    rates = [Spread.of([run["tokens_per_s"] for run in r["runs"]]) for r in results]
    whole = [
        Spread.of([run["tokens_per_s"] / run["fill"] for run in r["runs"]]).median for r in results
    ]
    axes.barh(names, whole, color="#e3e7e9", label="with padding")
    axes.barh(
        names,
        [rate.median for rate in rates],
        xerr=[
            [rate.median - rate.low for rate in rates],
            [rate.high - rate.median for rate in rates],
        ],
        color=["#b9c4c9" if r["aside"] else "#1f6f8b" for r in results],
        ecolor="#555555",
        label="tokens of samples",
    )
    for place, (rate, number) in enumerate(zip(rates, range(len(results)), strict=True)):
        first = ratios(results, number)[1].median
        axes.text(
            max(whole[place], rate.high), place, f"  {rate.median:,.0f}  x{first:.2f}", va="center"
        )
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlabel("tokens a second (least to most of the rounds)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    head, _, tail = title.partition(": ")
    axes.set_title(f"{head}\n{tail}", fontsize=9, loc="left", wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
