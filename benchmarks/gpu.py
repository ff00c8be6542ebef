"""Work for a GPU: decoding there, copies to it, and batches that are ready when it asks for them.

    python -m benchmarks.gpu --json gpu.json

It needs a CUDA device and torch built for it; without one it says so and measures nothing. It needs
no network: photographs are cropped out of those that scikit-image bundles, which `pip install
'datapipe[demo]'` brings. DALI is measured where `datapipe[dali]` is installed, and nvJPEG where
torchvision is; what is missing is named in the table, and the rest is measured. `--rehearse` runs
all of it on the CPU, to see that it runs: its figures mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.common import Contestant, Result, Spread, compete, machine, report, write_json
from benchmarks.data import packed, photographs
from benchmarks.gpu_decoders import BATCH, SIDE, Decoder, decoders
from benchmarks.gpu_measure import measure_copies, measure_latency, measure_loaders, prepare
from datapipe.cpus import available_cpus


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A figure that was aimed for.

    Attributes:
        name: what, with its unit.
        value: measured; None where it could not be.
        wanted: the figure.
        most: whether `wanted` is the most it may be; else the least.
    """

    name: str
    value: float | None
    wanted: float
    most: bool = True

    def __str__(self) -> str:
        aim = f"{'at most' if self.most else 'at least'} {self.wanted:,g}"
        if self.value is None:
            return f"{self.name}: not measured ({aim})"
        reached = self.value <= self.wanted if self.most else self.value >= self.wanted
        return f"{self.name}: {self.value:,.4g} ({aim}: {'reached' if reached else 'MISSED'})"


def main() -> None:
    """Parse the command line, measure, print and write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--samples", type=int, default=8192, help="photographs (default: %(default)s)")
    add("--rounds", type=int, default=5, help="counted rounds (default: %(default)s)")
    add("--workers", type=int, default=available_cpus(), help="threads (default: all cores)")
    add("--step-ms", type=float, default=50.0, help="of a training step (default: %(default)s)")
    add("--rehearse", action="store_true", help="on the CPU, where no figure means anything")
    add("--json", type=Path, metavar="FILE", help="also write every round to this file")
    options = parser.parse_args()
    if not (torch.cuda.is_available() or options.rehearse):
        print(
            f"torch {torch.__version__} finds no CUDA device here: nothing was measured. Run this "
            "on a machine with a GPU, or see that it runs with --rehearse."
        )
        return
    # Each measurement gets whole batches, and the loader some before those that count.
    if options.samples < BATCH * 2 * (options.workers + 2) or options.rounds < 1:
        parser.error(f"take at least {BATCH * 2 * (options.workers + 2)} --samples and 1 --rounds")
    device = torch.device("cpu" if options.rehearse else "cuda")
    photos = photographs(options.samples)
    jpegs, shards = photos.read(), packed(photos)
    where = machine(
        *("torch", "torchvision", "nvidia-dali-cuda130", "datapipe", "simplejpeg"), cache="warm"
    )
    where["gpu"] = describe(device)

    copies = measure_copies(device)
    made: dict[str, Decoder] = {}
    entries = [
        Contestant(name=name, make=partial(prepare, name, make, made, jpegs, device), note=note)
        for name, (make, note) in decoders(device, options.workers).items()
    ]
    results = compete(entries, options.rounds)
    able = {result.name: made[result.name] for result in results if result.runs}
    latencies = measure_latency(able, jpegs, device)
    for decoder in made.values():
        decoder.close()
    loaders = measure_loaders(shards, device, workers=options.workers, step=options.step_ms / 1e3)

    title = (
        f"{where['gpu']}: {photos} -> {SIDE}x{SIDE} antialiased, batches of {BATCH}, float32 "
        f"normalised on the device; {options.workers} threads, {options.rounds} rounds"
    )
    report(title, results, where=where, references=("cpu",), unit="img/s", path=None)
    bars = [] if options.rehearse else aims(copies, results, latencies, loaders)
    print()
    print("a rehearsal: no figure is compared with what was aimed for" * options.rehearse, end="")
    print(*bars, sep="\n")
    if options.json is not None:
        content = {
            "title": title,
            "machine": where,
            "rehearsal": options.rehearse,
            "copies_ms": {name: spread._asdict() for name, spread in copies.items()},
            "decoders": [asdict(result) for result in results],
            "latency_ms": {name: spread._asdict() for name, spread in latencies.items()},
            "loader": loaders,
            "aims": [asdict(bar) for bar in bars],
        }
        write_json(options.json, content)


def describe(device: torch.device) -> str:
    """Name of the device, with CUDA's version."""
    if device.type == "cpu":
        return "no GPU (a rehearsal)"
    return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"


def aims(
    copies: dict[str, Spread],
    results: Sequence[Result],
    latencies: dict[str, Spread],
    loaders: dict[str, dict[str, float]],
) -> list[Bar]:
    """Return what was wanted of a GPU, and what was measured."""
    rates = {result.name: result.rate.median for result in results if result.runs}
    return [
        *(
            Bar(name=f"copy of a batch, {name}, ms", value=spread.median, wanted=1.0)
            for name, spread in copies.items()
            if "page-locked" in name
        ),
        *(
            Bar(
                name=f"wait of the main thread, decoder {name}, median, ms",
                value=loader["wait_ms_median"],
                wanted=5.0,
            )
            for name, loader in loaders.items()
        ),
        Bar(
            name="fastest decoder, img/s",
            value=max(rates.values(), default=None),
            wanted=15_000,
            most=False,
        ),
        Bar(
            name="fastest batch from bytes to normalised tensor, ms",
            value=min((spread.median for spread in latencies.values()), default=None),
            wanted=40.0,
        ),
    ]


if __name__ == "__main__":
    main()
