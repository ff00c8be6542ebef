"""Ranks of a step that wait for the slowest: balanced packs against round-robin.

    python -m benchmarks.ranks --json benchmarks/results/ranks.json

The reference model trains on captions mixed with long documents, each with 0 to 8 images, in gloo
processes of one thread under DDP. "datapipe" lays packs out in steps of nearly equal cost. In
"round-robin" every rank takes each `ranks`-th sample and packs alone, best-fit decreasing in
buffers of 1,000, with the same capacity. Batches are made before the clock of a step starts. Ways
run in turn within every round, on other packs in each round; ratios are taken inside a round.

Every run is read on two clocks. "wall" is measured here: if ranks share cores, their total work
decides, as a rank that is done leaves its core to the others. "own core" is the CPU time of the
slowest rank plus an exchange of all gradients without overlap: a step of ranks with a core each.

The two ways train on different samples of one set, so in a short run their tokens can cost more or
less. So they are compared by the CPU time that they get done in a second of the clock, which on
equal samples is the ratio of their tokens/s.

"slowest / mean" is of the CPU time. "waiting" is the share of a step from the last gradient of a
rank to the last of all ranks.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.common import Row, Spread, command, headline, machine, parse_args, show, write_json
from benchmarks.ranks.measure import Ranks, Timed
from benchmarks.ranks.packs import Cost, balanced, draw, fit, imbalance, round_robin, simulate
from benchmarks.ranks.plan import planning
from datapipe.array_types import Float64
from datapipe.plan import Units
from examples.vlm.model.config import MODELS

AIM = 1.15
PLANNING_AIM = 1.0  # % of a core
SAMPLES = 1 << 16  # of the measured packs
WAYS = ("datapipe", "round-robin")
CLOCKS = ("wall", "own core")


class Round(NamedTuple):
    """Steps of one way in one round."""

    units: Units
    times: Timed

    def seconds(self, clock: str) -> Float64:
        times = self.times
        found: Float64 = times.wall.max(1) if clock == "wall" else times.cpu.max(1) + times.exchange
        return found

    def waiting(self, clock: str) -> float:
        """Return the share of the ranks' time in which they wait for others, or exchange."""
        if clock == "wall":
            return float(self.times.wait.sum() / self.times.wall.sum())
        return 1 - self.work_rate(clock)

    def work_rate(self, clock: str) -> float:
        """Return the CPU seconds of a rank in a second of the clock."""
        return float(self.times.cpu.mean(1).sum() / self.seconds(clock).sum())

    @property
    def tokens(self) -> int:
        assert self.units.sizes is not None
        return int(self.units.sizes.tokens.sum())

    def rate(self, clock: str) -> float:
        return float(self.tokens / self.seconds(clock).sum())


Measured = dict[tuple[int, str], list[Round]]  # by ranks and way


def main() -> None:
    options = parse()
    image_tokens = MODELS[options.model].vision.image_tokens
    where = machine("torch", "numpy", "datapipe", cache="not used")
    runs = measure(options, image_tokens)
    cost, explained = fitted(runs)
    sizes = options.capacity, image_tokens
    sections = {
        "Steps of the reference model": steps_table(runs, options.capacity),
        "Scaling by ranks": scaling_table(runs),
        "Simulated, by the fitted cost and without the exchange": simulate(cost, *sizes),
        "Planning for 1,024 ranks at 200 samples/s each": planning(*sizes),
    }
    title = (
        f"Ranks of {options.model}: packs of {options.capacity:,} tokens, captions mixed with "
        f"documents of up to 8,000 tokens, 0 to 8 images; {options.steps} steps a round, "
        f"{options.rounds} rounds"
    )
    print(f"{title}\n{headline(where)}")
    tables = {name: show(name, rows) for name, rows in sections.items()}
    where["load at the end"] = round(os.getloadavg()[0], 1)
    content = {"title": title, "machine": where, "tables": tables}
    content["cost"] = {**cost._asdict(), "explained": round(explained, 4)}
    print(
        f"\nCost of a pack: {1e6 * cost.token:.0f} µs a token, {1e9 * cost.pair:.0f} ns a pair of "
        f"tokens of one sample, {1e3 * cost.image:.1f} ms an image; {explained:.1%} of the "
        f"variance\n\n{verdict(tables)}"
    )
    write_json(options.json, content)


def parse() -> argparse.Namespace:
    parser = command("ranks", __doc__)
    add = parser.add_argument
    add("--model", choices=tuple(MODELS), default="tiny")
    add("--capacity", type=int, default=8192, help="tokens of a pack (default: %(default)s)")
    add("--ranks", type=int, nargs="+", default=[1, 2, 4], help="(default: 1 2 4)")
    add("--steps", type=int, default=8, help="of a way in a round (default: %(default)s)")
    add("--rounds", type=int, default=5, help="(default: %(default)s)")
    options = parse_args(parser)
    if min(options.steps, options.rounds, *options.ranks) < 1:
        parser.error("--steps, --rounds and --ranks must be at least 1")
    if 1 not in options.ranks:
        parser.error(f"--ranks {options.ranks}: scaling is by one rank; give 1 too")
    return options


def measure(options: argparse.Namespace, image_tokens: int) -> Measured:
    """Train all ways on all numbers of ranks in turn."""
    sizes = draw(SAMPLES, options.capacity, image_tokens)
    cores = sorted(os.sched_getaffinity(0))
    runs: Measured = {}
    packs: dict[tuple[int, str], Units] = {}
    groups: dict[int, Ranks] = {}
    try:
        for ranks in options.ranks:
            packs[ranks, "datapipe"] = balanced(sizes, options.capacity, ranks)
            packs[ranks, "round-robin"] = round_robin(sizes, options.capacity, ranks)
            there = len(packs[ranks, WAYS[1]]) // ranks
            if (needed := options.steps * (options.rounds + 1)) > there:
                sys.exit(f"{needed} steps of {ranks} ranks need more packs; {there} are too few")
            groups[ranks] = Ranks(ranks, cores if ranks <= len(cores) else None, options.model)
        for turn in range(options.rounds + 1):
            for ranks, group in groups.items():
                for way in WAYS if turn % 2 else WAYS[::-1]:
                    # The first round brings memory and kernels to where the others find them.
                    steps = options.steps if turn else 1
                    start = turn * options.steps
                    units = packs[ranks, way].between(start * ranks, (start + steps) * ranks)
                    done = Round(units, group.train(units))
                    rates = ", ".join(f"{done.rate(clock):,.0f} ({clock})" for clock in CLOCKS)
                    text = f"round {turn}: {ranks} ranks, {way}: tokens/s {rates}"
                    print(text, file=sys.stderr, flush=True)
                    if turn:
                        runs.setdefault((ranks, way), []).append(done)
    finally:
        for group in groups.values():
            group.close()
    return runs


def fitted(runs: Measured) -> tuple[Cost, float]:
    rounds = [done for key in runs for done in runs[key]]
    seconds = np.concatenate([done.times.cpu.reshape(-1) for done in rounds])
    return fit(Units.join([done.units for done in rounds]), seconds)


def steps_table(runs: Measured, capacity: int) -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0))
    several = sorted({ranks for ranks, _ in runs if ranks > 1}, reverse=True)
    for ranks, clock, way in product(several, CLOCKS, WAYS):
        shared = f", {cores} cores shared" if ranks > cores else ", a core each"
        rounds = runs[ranks, way]
        seconds = np.concatenate([done.seconds(clock) for done in rounds])
        tokens = sum(done.tokens for done in rounds)
        work = [done.work_rate(clock) for done in rounds]
        others = [done.work_rate(clock) for done in runs[ranks, "round-robin"]]
        cpu = np.concatenate([done.times.cpu for done in rounds])
        packs = sum(len(done.units) for done in rounds)
        yield {
            "ranks": ranks,
            "clock": clock + shared * (clock == "wall"),
            "packs": way,
            "tokens/s": round(median(done.rate(clock) for done in rounds)),
            "x round-robin": ratio(work, others),
            "step P50, ms": round(1e3 * float(np.median(seconds))),
            "step P99, ms": round(1e3 * float(np.percentile(seconds, 99))),
            "slowest / mean": round(imbalance(cpu), 3),
            "waiting, %": round(100 * median(done.waiting(clock) for done in rounds), 1),
            "fill, %": round(100 * tokens / capacity / packs, 2),
        }


def scaling_table(runs: Measured) -> Iterator[Row]:
    """Yield rates by ranks, and their share of so many times the rate of one rank."""
    for ranks in sorted({ranks for ranks, _ in runs}):
        for clock in CLOCKS:
            row: Row = {"ranks": ranks, "clock": clock}
            for way in WAYS:
                rates = [done.rate(clock) for done in runs[ranks, way]]
                one = [ranks * done.rate(clock) for done in runs[1, way]]
                row[f"{way}, tokens/s"] = round(median(rates))
                row[f"{way}, efficiency"] = ratio(rates, one)
            yield row


def ratio(rates: Sequence[float], others: Sequence[float]) -> str:
    return str(Spread.of([own / other for own, other in zip(rates, others, strict=True)]))


def verdict(tables: dict[str, list[Row]]) -> str:
    lines = [
        f"{row['ranks']} ranks, {row['clock']}: {row['x round-robin']} times the tokens/s "
        f"of round-robin (aim: {AIM})"
        for row in tables["Steps of the reference model"]
        if row["packs"] == "datapipe"
    ]
    for row in tables["Planning for 1,024 ranks at 200 samples/s each"]:
        share = row["of a core a rank, %"]
        lines.append(
            f"planning, folder of {row['ranks that share it']}: {share} % of a core a rank "
            f"(aim: {PLANNING_AIM})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
