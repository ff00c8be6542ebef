"""A thousand datasets of a million samples: opened, first step, memory, files, fill, balance."""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import Row, Spread
from benchmarks.mixtures.data import CAPACITY, IMAGE_TOKENS, joined, synthetic, text_spec, weighted
from benchmarks.mixtures.ranks import Ended, Peak, Rank, Ranks, megabytes

WORLD = 64
KINDS = 7  # no divisor of the number of different weights, so every kind has every weight
OPEN_AIM, STEP_AIM, MEMORY_AIM, FILES_AIM = 5.0, 2.0, 300, 64
FILL_AIM, IMBALANCE_AIM = 0.999, 3.0
_FREE = 4 << 30  # bytes of disk that the datasets take at most, with what is derived from them
_ALONE, _TOGETHER = 0.02, 0.2  # seconds between two looks at one rank, at many


class Opened(NamedTuple):
    """One run of some ranks.

    Attributes:
        ended: phases by name.
        peak: the most at the ends of phases, and between them if it was sampled.
        peak_rss: by the kernel's account, of the rank with the most.
    """

    ended: dict[str, Ended]
    peak: Peak
    peak_rss: int


def many(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for one rank, for some ranks of a machine, and for one dataset.

    Times are taken in as many fresh processes as there are `rounds`; fill and imbalance are
    measured over some `blocks` of the plan.
    """
    samples, blocks, ranks = options.samples, options.blocks, options.ranks
    Path("build").mkdir(exist_ok=True)
    if (free := shutil.disk_usage("build").free) < _FREE:
        raise SystemExit(f"build/ has {free / 1e9:.1f} GB free; {_FREE / 1e9:.1f} GB needed")
    shares = weighted(synthetic(options.datasets, samples, kinds=KINDS))
    whole = {str(joined(max(samples, (blocks + 1) << 16), kinds=KINDS)): 1}
    for of, given in ((f"{options.datasets:,} datasets", shares), ("one dataset", whole)):
        for name, count in ((of, 1), (f"{of}, {ranks} ranks", ranks)):
            print(name, file=sys.stderr, flush=True)
            yield {"of": name, **_measured(given, count, rounds=options.rounds, blocks=blocks)}


def timings(runs: Sequence[Opened]) -> Row:
    """Return the seconds until datasets are open, and from then to the first step."""
    spreads = {
        phase: Spread.of([run.ended[phase].seconds for run in runs])
        for phase in ("open", "first step")
    }
    row: Row = {f"{phase}, s": str(spread) for phase, spread in spreads.items()}
    return row | {f"{phase}, median": round(one.median, 3) for phase, one in spreads.items()}


def _measured(given: dict[str, int], ranks: int, *, rounds: int, blocks: int) -> Row:
    first = opened(given, ranks, blocks=1)  # makes what is derived from several datasets
    runs = [opened(given, ranks, blocks=1) for _ in range(rounds)]
    last = opened(given, ranks, blocks=blocks, every=_ALONE if ranks == 1 else _TOGETHER)
    before, end = last.ended["imports"].memory, last.ended["end"].memory
    grown, (plan, *_) = last.peak.total.less(before), last.ended["blocks"].facts
    return {
        "ranks": ranks,
        "first time, s": round(first.ended["open"].seconds, 2),
        **timings(runs),
        "files": last.peak.files,
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
        "fill": round(plan["fill"], 5),
        "imbalance, text, %": round(100 * plan["text"], 2),
        "imbalance, images, %": round(100 * plan["images"], 2),
        "packs": plan["packs"],
    }


def opened(
    given: dict[str, int],
    ranks: int,
    *,
    blocks: int,
    until: str = "end",
    every: float | None = None,
) -> Opened:
    """Open and plan in fresh processes, up to the end of a phase, as some ranks of `WORLD`."""
    spec = text_spec()
    text = {"tokenizer": str(spec.tokenizer), "template": spec.template}
    options = {"weights": given, "text": {**text, "image_tokens": IMAGE_TOKENS}}
    options |= {"capacity": CAPACITY, "blocks": blocks, "world": WORLD}
    started = [
        Rank(f"plan-{rank}", "mixture_plan.run", {**options, "rank": rank}, ours=True)
        for rank in range(ranks)
    ]
    peak = Peak()
    with Ranks(started) as group:
        with group.watched(every=every, peak=peak) if every else nullcontext():
            ended = group.follow(until)
        for phase in ended.values():
            peak.add(phase.seen)
        return Opened(ended, peak, group.peak_rss())


def verdicts(rows: list[Row]) -> list[Row]:
    """Compare the tables with what was aimed for.

    Memory is that of a rank's process with all that it imports.
    """
    one, machine = rows[:2]
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
