"""A thousand datasets of a million samples: opened, first step, memory, files, fill, balance."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.common import Row, Spread
from benchmarks.mixtures.data import CAPACITY, IMAGE_TOKENS, joined, synthetic, text_spec, weights
from benchmarks.mixtures.ranks import Memory, Peak, Rank, Ranks, megabytes, total

WORLD = 64
KINDS = 7  # no divisor of the number of different weights, so every kind has every weight
OPEN_AIM, STEP_AIM, MEMORY_AIM, FILES_AIM = 5.0, 2.0, 300, 64
FILL_AIM, IMBALANCE_AIM = 0.999, 3.0
_FREE = 4 << 30  # bytes of disk that the datasets take at most, with what is derived from them
_ALONE, _TOGETHER = 0.02, 0.2  # seconds between two looks at one rank, at many


class Opened(NamedTuple):
    """One run of some ranks.

    Attributes:
        seconds: of each phase, of the slowest rank.
        memory: of all ranks together after each phase.
        peak: highest memory between phases; empty if it was not sampled.
        peak_rss, files: peak by the kernel's account, and open files, of the rank with the most.
        facts: of the phase "blocks", of the first rank.
        from_disk: bytes that all ranks read in each phase.
    """

    seconds: dict[str, float]
    memory: dict[str, Memory]
    peak: Peak
    peak_rss: int
    files: int
    facts: dict[str, Any]
    from_disk: dict[str, int]


def many(datasets: int, samples: int, *, rounds: int, blocks: int, ranks: int) -> Iterator[Row]:
    """Yield a row for one rank, for some ranks of a machine, and for one dataset.

    Times are taken in as many fresh processes as there are `rounds`; fill and imbalance are
    measured over some `blocks` of the plan.
    """
    Path("build").mkdir(exist_ok=True)
    if (free := shutil.disk_usage("build").free) < _FREE:
        raise SystemExit(f"build/ has {free / 1e9:.1f} GB free; {_FREE / 1e9:.1f} GB needed")
    folders = synthetic(datasets, samples, kinds=KINDS)
    shares = dict(zip(map(str, folders), weights(datasets).tolist(), strict=True))
    whole = {str(joined(1, max(samples, (blocks + 1) << 16), kinds=KINDS)): 1}
    for name, given, of_machine in (
        (f"{datasets:,} datasets", shares, 1),
        (f"{datasets:,} datasets, {ranks} ranks", shares, ranks),
        ("one dataset", whole, 1),
        (f"one dataset, {ranks} ranks", whole, ranks),
    ):
        print(name, file=sys.stderr, flush=True)
        yield {"of": name, **_measured(given, of_machine, rounds=rounds, blocks=blocks)}


def _measured(given: dict[str, int], ranks: int, *, rounds: int, blocks: int) -> Row:
    first = opened(given, ranks, blocks=1)  # makes what is derived from several datasets
    runs = [opened(given, ranks, blocks=1) for _ in range(rounds)]
    last = opened(given, ranks, blocks=blocks, every=_ALONE if ranks == 1 else _TOGETHER)
    before, end = last.memory["imports"], last.memory["end"]
    grown = last.peak.total.less(before)
    return {
        "ranks": ranks,
        "first time, s": round(first.seconds["open"], 2),
        "open, s": str(Spread.of([run.seconds["open"] for run in runs])),
        "first step, s": str(Spread.of([run.seconds["first step"] for run in runs])),
        "open, median": round(median(run.seconds["open"] for run in runs), 3),
        "first step, median": round(median(run.seconds["first step"] for run in runs), 3),
        "files": max(last.files, last.peak.files),
        "RSS of a rank, peak": megabytes(max(last.peak_rss, last.peak.rank.rss)),
        "USS, imports": megabytes(before.uss),
        "USS, peak": megabytes(last.peak.total.uss),
        "USS, end": megabytes(end.uss),
        "PSS, imports": megabytes(before.pss),
        "PSS, peak": megabytes(last.peak.total.pss),
        "PSS, end": megabytes(end.pss),
        "RSS, end": megabytes(end.rss),
        "PSS over imports, peak": megabytes(grown.pss),
        "USS over imports, peak": megabytes(grown.uss),
        "fill": round(last.facts["fill"], 5),
        "imbalance, text, %": round(100 * last.facts["text"], 2),
        "imbalance, images, %": round(100 * last.facts["images"], 2),
        "packs": last.facts["packs"],
    }


def plan_ranks(given: dict[str, int], ranks: int, blocks: int) -> list[Rank]:
    """Start ranks that plan the packs of datasets with weights, as some of a run of `WORLD`."""
    spec = text_spec()
    text = {"tokenizer": str(spec.tokenizer), "template": spec.template}
    options = {
        "weights": given,
        "text": {**text, "image_tokens": IMAGE_TOKENS},
        "capacity": CAPACITY,
        "blocks": blocks,
        "world": WORLD,
    }
    return [
        Rank(f"plan-{rank}", "mixture_plan", {**options, "rank": rank}, ours=True)
        for rank in range(ranks)
    ]


def opened(
    given: dict[str, int],
    ranks: int,
    *,
    blocks: int,
    until: str = "end",
    every: float | None = None,
) -> Opened:
    """Open and plan in fresh processes, up to the end of a phase."""
    started = plan_ranks(given, ranks, blocks)
    seconds, memory, files, read, before = {}, {}, 0, {}, 0
    facts: dict[str, Any] = {}
    peak = Peak()
    with Ranks(started) as group:
        with group.watched(every=every, peak=peak) if every else nullcontext():
            for phase, told in group.phases():
                seconds[phase] = max(each["seconds"] for each in told)
                seen = group.look()
                peak.add(seen)
                memory[phase] = total(seen)
                files = max(files, *(each.files for each in seen))
                now = group.bytes_from_disk()
                read[phase], before = now - before, now
                if phase == "blocks":
                    facts = told[0]
                if phase == until:
                    break
        return Opened(seconds, memory, peak, group.peak_rss(), files, facts, read)


def verdicts(rows: list[Row]) -> list[Row]:
    """Compare the tables with what was aimed for.

    Memory is that of a rank's process with all that it imports.
    """
    one, machine = rows[0], rows[1]
    share = round(machine["PSS, peak"] / machine["ranks"])
    return [
        aim("open, s", one["open, median"], OPEN_AIM),
        aim("first step, s", one["first step, median"], STEP_AIM),
        aim("RSS of a rank, peak, MB", one["RSS of a rank, peak"], MEMORY_AIM),
        aim("PSS over imports of a rank, peak, MB", one["PSS over imports, peak"], MEMORY_AIM),
        aim(f"PSS of a rank of {machine['ranks']}, peak, MB", share, MEMORY_AIM),
        aim("open files", one["files"], FILES_AIM),
        aim("fill", one["fill"], FILL_AIM, least=True),
        aim("imbalance of text, %", one["imbalance, text, %"], IMBALANCE_AIM),
        aim("imbalance of images, %", one["imbalance, images, %"], IMBALANCE_AIM),
    ]


def aim(name: str, measured: float, bar: float, *, least: bool = False) -> Row:
    """Return a line that compares a figure with the most, or the least, that is aimed for."""
    reached = measured >= bar if least else measured <= bar
    return {
        "figure": name,
        "measured": measured,
        "aim": f"at {'least' if least else 'most'} {bar}",
        "reached": "yes" if reached else "no",
    }
