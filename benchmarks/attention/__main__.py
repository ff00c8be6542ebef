"""Kernels of attention: time and memory, by the length of sequences, padded and packed.

    python -m benchmarks.attention --json attention.json --plot attention.svg

Forward and backward of one attention layer, without the projections around it, in two settings:

- one sequence: rows of `length` tokens, nothing between them to leave out;
- packed: captions and conversations of at most `length` tokens, once as rows padded to the longest,
  once concatenated in a row. Rates are by the real token.

`plain` keeps every score, as in the paper. Kernels that cannot run are named with the reason. On a
GPU the aim is that the best kernel is 3.7 times as fast as `plain` at 2,048 tokens, in 2.9 times
less memory. On a CPU the layer is smaller; `--threads 1` helps if others use the CPU too. Results
are written after each length; `examples.vlm.train --attention-table` reads them. `--rehearse` runs
all of it in seconds, to check that it runs: its figures mean nothing.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.attention.measure import Layer, Measured, measure_mixed, measure_rows
from benchmarks.attention.report import absences, draw
from benchmarks.common import add_json, command, machine, show_as, write_json
from benchmarks.gpu.aims import Bar, as_json, describe, show
from examples.vlm.model.attention import KERNELS

AIM = 2048  # tokens
FASTER, SMALLER = 3.7, 2.9


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(command("attention", __doc__), arguments)
    layer = Layer(
        heads=options.heads,
        kv_heads=options.kv_heads or options.heads,
        size=options.size,
        dtype=getattr(torch, options.dtype),
        device=torch.device(options.device),
        memory=options.memory * 1e9,
        causal=not options.non_causal,
        dropout=options.dropout,
    )
    torch.set_num_threads(options.threads)
    where = machine("torch", "triton", "flash-attn", "xformers", cache="not used")
    on_cpu = options.device == "cpu"  # the aims are for a GPU
    where["gpu"] = "not used" if on_cpu else describe(layer.device)
    title = (
        f"Attention, forward and backward: {layer.heads} heads ({layer.kv_heads} of keys) of "
        f"{layer.size}, {options.dtype}, {'causal' if layer.causal else 'non-causal'}"
        f"{f', dropout {layer.dropout}' * (layer.dropout > 0)}; rounds: {options.rounds}, "
        f"threads: {options.threads}"
    )
    rows: list[Measured] = []
    mixed: list[Measured] = []
    for length in options.lengths:
        # Each number of tokens is compiled for itself, as it is where all batches have the same.
        with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
            rows.append(measure_rows(layer, length, options))
            mixed.append(measure_mixed(layer, length, options))
        for settings in (rows, mixed):
            settings.sort(key=lambda at: at.length)
        content = {
            "title": title,
            "machine": where,
            "causal": not options.non_causal,
            "dropout": options.dropout,
            "tokens": options.tokens,
            "settings": {
                "rows of one length": [asdict(at) for at in rows],
                "captions and conversations": [asdict(at) for at in mixed],
            },
            **as_json([] if on_cpu else aims(rows), rehearsal=options.rehearse),
        }
        write_json(options.json, content)
    show_as("attention", content)
    print(*absences([*rows, *mixed]), sep="\n")
    show(aims(rows), rehearsal=on_cpu)
    if options.plot is not None:
        device = f"{where['cpu']}, {where['cores']} cores" if on_cpu else where["gpu"]
        draw(rows, mixed, title=f"{title}; {device}", path=options.plot)


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", metavar="N", help="tokens (default: 2048, 256 to 8192)")
    add("--rounds", type=int, help="counted rounds (default: 5 on a GPU, 3 on the CPU)")
    add("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS), metavar="NAME")
    add("--dtype", choices=["bfloat16", "float16", "float32"], help="(default: bfloat16 on a GPU)")
    add("--device", choices=["cpu", "cuda"], help="(default: a GPU where there is one)")
    add("--heads", type=int, help="of queries (default: 32 on a GPU, 4 on the CPU)")
    add("--kv-heads", type=int, help="of keys and values (default: as many)")
    add("--size", type=int, default=64, help="of a head (default: %(default)s)")
    add("--tokens", type=int, help="of a batch, at least (default: 16384 on a GPU, 2048 on a CPU)")
    add("--threads", type=int, help="of the CPU (default: torch's, mostly all cores)")
    add("--memory", type=float, default=8.0, help="GB for scores on the CPU (default: %(default)s)")
    add("--non-causal", action="store_true", help="every token sees all of its sequence")
    add("--dropout", type=float, default=0.0, metavar="SHARE", help="of the weights set to zero")
    add("--rehearse", action="store_true", help="in seconds, on the CPU")
    add_json(parser)
    add("--plot", type=Path, metavar="FILE", help="also draw time and memory by length")
    options = parser.parse_args(arguments)
    if options.rehearse:
        options.device, options.rounds, options.tokens = "cpu", 1, 512
        options.lengths = options.lengths or [64, 128]
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    gpu = options.device == "cuda"
    # First the one that the aims are for: each is written when it is measured.
    options.lengths = options.lengths or [2048, *[8192] * gpu, 256, 512, 1024, 4096]
    options.rounds = options.rounds or (5 if gpu else 3)
    options.dtype = options.dtype or ("bfloat16" if gpu else "float32")
    options.heads = options.heads or (32 if gpu else 4)
    options.tokens = options.tokens or (16384 if gpu else 2048)
    options.threads = options.threads or torch.get_num_threads()
    if min(options.lengths) < 16 or min(options.rounds, options.threads) < 1:
        parser.error("take --lengths of at least 16, and 1 of --rounds and --threads or more")
    if not 0 <= options.dropout < 1:
        parser.error(f"--dropout {options.dropout}: give a share from 0 to below 1")
    return options


def aims(rows: Iterable[Measured]) -> list[Bar]:
    faster = smaller = None
    for at in rows:
        plain = at.named("plain")
        if at.length != AIM or plain is None:
            continue
        others = [one for one in at.results if one.runs and one is not plain]
        faster = max((one.ratio(plain).median for one in others), default=None)
        peaks = [at.costs[one.name].peak for one in others]
        smaller = at.costs["plain"].peak / min(peaks) if peaks else None
    return [
        Bar(f"fastest kernel at {AIM:,}, x plain", faster, FASTER, most=False),
        Bar(f"memory of plain at {AIM:,} / of the smallest", smaller, SMALLER, most=False),
    ]


if __name__ == "__main__":
    main()
