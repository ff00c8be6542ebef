"""Decoding on a GPU: DALI by batch and threads, nvJPEG, the CPU kernels and DALI's limit.

    python -m benchmarks.gpu.decode --json decode.json

Heats follow each other: batches and threads first, then the options of the fastest, then it beside
its peers and DALI's own operators, and last on JPEGs of several kinds.

It needs a CUDA device, torch built for it and `pip install 'datapipe-vlm[demo]'` for the
photographs, but no network. Decoders that are not installed are named in the table. Results are
written after every round. `--rehearse` runs all of it on the CPU, to check that it runs: its
figures mean nothing.
"""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import simplejpeg
import torch

from benchmarks.common import (
    Absent,
    Contestant,
    Result,
    Run,
    Spread,
    command,
    compete,
    machine,
    natural,
    parse_args,
    report,
    write_json,
)
from benchmarks.data import photographs
from benchmarks.gpu.aims import Bar, as_json, describe, find_device, show
from benchmarks.gpu.decoders import SIDE, Entry, Setting, kernels, limits, nvjpeg
from benchmarks.gpu.loading import wait
from datapipe.cpus import available_cpus

T = TypeVar("T")

LATENCIES = 20  # batches of each decoder
MIXED = "mixed subsampling"


def main() -> None:
    cores = available_cpus()
    parser = command("gpu.decode", __doc__)
    add = parser.add_argument
    several: dict[str, Any] = {"type": natural, "nargs": "+", "metavar": "N"}
    add("--samples", type=natural, default=4096, help="photographs (default: %(default)s)")
    add("--rounds", type=natural, default=3, help="counted rounds (default: %(default)s)")
    add("--batches", **several, default=[32, 64, 128, 256], help="images")
    counts = sorted({max(1, cores // 4), max(1, cores // 2), cores})
    about = "of DALI; the most are those of the CPU kernels too (default: %(default)s)"
    add("--threads", **several, default=counts, help=about)
    add("--rehearse", action="store_true", help="on the CPU, where no figure means anything")
    options = parse_args(parser)
    if options.samples < max(options.batches):
        parser.error(f"--samples {options.samples}: take a batch of {max(options.batches)}")
    device = find_device(rehearse=options.rehearse)
    photos = photographs(options.samples)
    jpegs = photos.read()
    packages = ("torch", "torchvision", "nvidia-dali-cuda130", "datapipe", "simplejpeg")
    where = machine(*packages, cache="warm") | {"gpu": describe(device)}
    title = (
        f"{where['gpu']}: {photos} -> {SIDE}x{SIDE} antialiased, float32 normalised on the device; "
        f"{options.rounds} rounds"
    )
    heats = Heats(device, where, rounds=options.rounds)

    def keep(latencies: dict[str, Spread] | None = None) -> None:
        bars = aims(heats.results(), latencies or {}, small)
        content = {
            "title": title,
            "machine": where,
            "heats": {name: [asdict(one) for one in heat] for name, heat in heats.done.items()},
            "latency_ms": {name: one._asdict() for name, one in (latencies or {}).items()},
            **as_json(bars, rehearsal=options.rehearse),
        }
        write_json(options.json, content)

    heats.after_round = keep
    small, most = min(options.batches), max(options.threads)
    reference = kernels(device, small, most)
    settings = [Setting(*pair) for pair in product(options.batches, options.threads)]
    best = settings[-1]
    for name in ("batch and threads", "options"):
        entries = [setting.entry(device) for setting in settings]
        best = heats.run(name, [reference, *entries], jpegs) or best
        settings = best.variations()
    peers = [nvjpeg(device, batch) for batch in options.batches]
    final = [reference, best.entry(device), *peers, *limits(device, best)]
    heats.run("peers and limits", final, jpegs)
    heats.run(MIXED, [reference, best.entry(device)], mixed_subsampling(jpegs))
    quick = [reference, replace(best, batch=small).entry(device), nvjpeg(device, small)]
    latencies = measure_latency(quick, jpegs, device)
    keep(latencies)
    for name, spread in latencies.items():
        print(f"{name}: {spread.median:.1f} ms a batch of {small}")
    show(aims(heats.results(), latencies, small), rehearsal=options.rehearse)


class Heats:
    """Rounds of a few decoders at a time, which share the device's memory; `done` has results."""

    def __init__(self, device: torch.device, where: dict[str, Any], *, rounds: int) -> None:
        self._device, self._where, self._rounds = device, where, rounds
        self.done: dict[str, list[Result]] = {}
        self.after_round: Callable[[], None] = lambda: None

    def run(self, name: str, entries: Sequence[Entry], jpegs: Sequence[bytes]) -> Setting | None:
        """Measure decoders, print the results, and return the fastest setting of DALI."""
        print(f"\n{name}", file=sys.stderr, flush=True)

        def keep(results: list[Result]) -> None:
            self.done[name] = results
            self.after_round()

        with ExitStack() as made:
            contestants = []
            for entry in entries:
                make = partial(prepare, entry, made, jpegs, self._device)
                contestants.append(Contestant(entry.name, make, entry.note))
            results = compete(contestants, self._rounds, after_round=keep)
        keep(results)
        report(name, results, where=self._where, references=("cpu",), unit="img/s", path=None)
        rates = {
            entry.setting: result.rate.median
            for entry, result in zip(entries, results, strict=True)
            if entry.setting is not None and result.runs
        }
        return max(rates, key=lambda setting: rates[setting], default=None)

    def results(self) -> list[Result]:
        return [result for name, heat in self.done.items() if name != MIXED for result in heat]


def mixed_subsampling(jpegs: Sequence[bytes]) -> list[bytes]:
    """Encode photographs again, one after the other as 4:4:4, 4:2:2, 4:2:0 and grey.

    As in data from the web; hardware decodes images that are alike faster.
    """

    def encode(number: int) -> bytes:
        pixels = simplejpeg.decode_jpeg(jpegs[number])
        kind = ("444", "422", "420", "gray")[number % 4]
        how = {"colorsubsampling": kind}
        if kind == "gray":
            pixels, how = np.ascontiguousarray(pixels[..., 1:2]), {"colorspace": "GRAY"}
        encoded: bytes = simplejpeg.encode_jpeg(pixels, quality=90, **how)
        return encoded

    with ThreadPoolExecutor() as pool:
        return list(pool.map(encode, range(len(jpegs))))


def prepare(
    entry: Entry, made: ExitStack, jpegs: Sequence[bytes], device: torch.device
) -> Callable[[], Run]:
    """Make a decoder that `made` closes, and return what decodes all photographs once."""
    starts = range(0, len(jpegs) - entry.batch + 1, entry.batch)
    batches = [jpegs[at : at + entry.batch] for at in starts]
    decode = attempt(lambda: made.enter_context(entry.make()))

    def work() -> Run:
        wait(device)
        begun = time.perf_counter()
        decoded = sum(1 for _ in decode(batches))
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


def measure_latency(
    entries: Sequence[Entry], jpegs: Sequence[bytes], device: torch.device
) -> dict[str, Spread]:
    """Milliseconds from a batch's bytes to the tensor, nothing else going on."""
    times: dict[str, list[float]] = {}
    with ExitStack() as made:
        works = {}
        for entry in entries:
            with suppress(Absent, ImportError):
                work = prepare(entry, made, jpegs[: entry.batch], device)
                work()
                works[entry.name] = work
        for name, work in [*works.items()] * LATENCIES:
            with suppress(Absent):
                times.setdefault(name, []).append(1e3 * work().seconds)
    return {name: Spread.of(values) for name, values in times.items()}


def aims(results: Sequence[Result], latencies: dict[str, Spread], smallest: int) -> list[Bar]:
    rates = [(one.name, one.rate.median) for one in results if one.runs]
    dali = max((rate for name, rate in rates if name.startswith("dali")), default=None)
    limit = dict(rates).get("limit: DALI, decoding and resizing")
    share = dali / limit if dali and limit else None
    latency = min((spread.median for spread in latencies.values()), default=None)
    name, from_bytes = "DALI with the best settings", "from bytes to normalised tensor, ms"
    return [
        Bar(f"{name}, img/s", dali, 15_000, most=False),
        Bar(f"{name}, share of its limit", share, 0.9, most=False),
        Bar(f"fastest batch of {smallest} {from_bytes}", latency, 40.0),
    ]


if __name__ == "__main__":
    main()
