"""Decoding on a GPU: DALI by batch and threads, beside nvJPEG, the CPU kernels and DALI's limit.

    python -m benchmarks.gpu.decode --json decode.json

It needs a CUDA device and torch built for it; without one it says so and measures nothing. It needs
no network: photographs are cropped out of those that scikit-image bundles, which `pip install
'datapipe[demo]'` brings. DALI is measured where `datapipe[dali]` is installed, and nvJPEG where
torchvision is; what is missing is named in the table, and the rest is measured. Results are written
after every round. `--rehearse` runs all of it on the CPU, to see that it runs: its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.common import (
    Absent,
    Contestant,
    Result,
    Run,
    Spread,
    compete,
    machine,
    report,
    write_json,
)
from benchmarks.data import photographs
from benchmarks.gpu.aims import Bar, as_json, describe, find_device, show
from benchmarks.gpu.decoders import SIDE, Decoder, Entry, entries
from benchmarks.gpu.loading import wait
from datapipe.cpus import available_cpus

T = TypeVar("T")

LATENCIES = 20  # batches of each decoder


def main() -> None:
    """Parse the command line, measure, print and write the results."""
    cores = available_cpus()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--samples", type=int, default=4096, help="photographs (default: %(default)s)")
    add("--rounds", type=int, default=3, help="counted rounds (default: %(default)s)")
    add("--batches", type=int, nargs="+", default=[32, 64, 128, 256], metavar="N", help="images")
    add(
        "--threads",
        type=int,
        nargs="+",
        default=sorted({max(1, cores // 4), max(1, cores // 2), cores}),
        metavar="N",
        help="of DALI; the most are those of the CPU kernels too (default: %(default)s)",
    )
    add("--rehearse", action="store_true", help="on the CPU, where no figure means anything")
    add("--json", type=Path, metavar="FILE", help="also write every round to this file")
    options = parser.parse_args()
    if min(*options.batches, *options.threads, options.rounds) < 1:
        parser.error("take at least 1 of --batches, --threads and --rounds")
    if options.samples < max(options.batches):
        parser.error(f"--samples {options.samples}: take a batch of {max(options.batches)}")
    device = find_device(rehearse=options.rehearse)
    if device is None:
        return
    photos = photographs(options.samples)
    jpegs = photos.read()
    packages = ("torch", "torchvision", "nvidia-dali-cuda130", "datapipe", "simplejpeg")
    where = machine(*packages, cache="warm") | {"gpu": describe(device)}
    title = (
        f"{where['gpu']}: {photos} -> {SIDE}x{SIDE} antialiased, float32 normalised on the device; "
        f"{options.rounds} rounds"
    )
    found = entries(device, options.batches, options.threads)
    made: dict[str, Decoder] = {}

    def bars(results: Sequence[Result], latencies: dict[str, Spread] | None) -> list[Bar]:
        return aims(results, latencies or {}, min(options.batches))

    def keep(results: Sequence[Result], latencies: dict[str, Spread] | None = None) -> None:
        content = {
            "title": title,
            "machine": where,
            "decoders": [asdict(result) for result in results],
            "latency_ms": {name: one._asdict() for name, one in (latencies or {}).items()},
            **as_json(bars(results, latencies), rehearsal=options.rehearse),
        }
        if options.json is not None:
            write_json(options.json, content)

    contestants = [
        Contestant(
            name=entry.name,
            make=partial(prepare, entry, made, jpegs, device),
            note=entry.note,
        )
        for entry in found
    ]
    results = compete(contestants, options.rounds, after_round=keep)
    able = {result.name for result in results if result.runs}
    quick = [entry for entry in found if entry.name in able and entry.batch == min(options.batches)]
    latencies = measure_latency(quick, made, jpegs, device)
    for decoder in made.values():
        decoder.close()
    report(title, results, where=where, references=("cpu",), unit="img/s", path=None)
    keep(results, latencies)
    show(bars(results, latencies), rehearsal=options.rehearse)


def prepare(
    entry: Entry, made: dict[str, Decoder], jpegs: Sequence[bytes], device: torch.device
) -> Callable[[], Run]:
    """Make a decoder, remember it, and return what decodes all photographs once.

    Raises:
        Absent: it cannot be made; a failure is printed, and the others go on.
    """
    batches = whole_batches(jpegs, entry.batch)
    decoder = made[entry.name] = attempt(entry.make)

    def work() -> Run:
        wait(device)
        begun = time.perf_counter()
        decoded = sum(1 for _ in decoder.decode(batches))
        wait(device)
        return Run(samples=decoded * entry.batch, seconds=time.perf_counter() - begun)

    return lambda: attempt(work)


def attempt(work: Callable[[], T]) -> T:
    """Call `work`; print a failure and raise `Absent`, so that the others go on."""
    try:
        return work()
    except (Absent, ImportError):
        raise
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        said = (str(error).splitlines() or [""])[0]
        raise Absent(f"FAILED: {type(error).__name__}: {said}") from error


def whole_batches(jpegs: Sequence[bytes], batch: int) -> list[Sequence[bytes]]:
    """Return the photographs in full batches."""
    return [jpegs[at : at + batch] for at in range(0, len(jpegs) - batch + 1, batch)]


def measure_latency(
    able: Sequence[Entry], made: dict[str, Decoder], jpegs: Sequence[bytes], device: torch.device
) -> dict[str, Spread]:
    """Milliseconds from a batch's bytes to the tensor, nothing else going on."""
    times: dict[str, list[float]] = {entry.name: [] for entry in able}
    for number in range(LATENCIES):
        for entry in able:
            batches = whole_batches(jpegs, entry.batch)
            wait(device)
            begun = time.perf_counter()
            for _ in made[entry.name].decode([batches[number % len(batches)]]):
                pass
            wait(device)
            times[entry.name].append(1e3 * (time.perf_counter() - begun))
    return {name: Spread.of(values) for name, values in times.items()}


def aims(results: Sequence[Result], latencies: dict[str, Spread], smallest: int) -> list[Bar]:
    """Return what was wanted of decoding, and what was measured."""

    def most(prefix: str) -> float | None:
        rates = [one.rate.median for one in results if one.runs and one.name.startswith(prefix)]
        return max(rates, default=None)

    dali, limit = most("dali"), most("limit: DALI, decoding and resizing")
    own = [spread.median for name, spread in latencies.items() if not name.startswith("limit")]
    return [
        Bar(name="DALI with the best settings, img/s", value=dali, wanted=15_000, most=False),
        Bar(
            name="DALI with the best settings, share of its limit",
            value=dali / limit if dali and limit else None,
            wanted=0.9,
            most=False,
        ),
        Bar(
            name=f"fastest batch of {smallest} from bytes to normalised tensor, ms",
            value=min(own, default=None),
            wanted=40.0,
        ),
    ]


if __name__ == "__main__":
    main()
