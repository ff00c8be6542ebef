"""Predictions of `datapipe profile` for its remedies, beside their effect when they are applied.

    python -m benchmarks.profile

Each case is a loader with something to be mended. It is profiled; then every remedy that exists is
applied, and the loaders run in turn with the one as it was. The error is that of the predicted
gain. A run that other processes have disturbed is repeated, for a quarter of a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Contestant, Run, Spread, compete, machine, parse, write_json
from benchmarks.data import mixed_photographs, packed, photographs
from benchmarks.peers.work import BATCH, SIDE
from benchmarks.transforms import hold_lock
from datapipe import ImageSpec, Loader, make_loader, pack_dataset
from datapipe.profile.forecast import Remedy
from datapipe.profile.job import Profile, profile_loader
from datapipe.profile.pipeline import run_pipeline
from datapipe.store.shards import ShardStore

_LATENCY = 0.004  # seconds of a read from the slow storage
_DISTURBED = 0.05  # of the cores' time, that others take
_PATIENCE = 15.0  # seconds, in which a run is repeated
_BASE = "as it is"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loader with something to be mended.

    Attributes:
        name: short.
        shards: its dataset.
        options: of `make_loader`.
        around: a context that it runs in: slow storage, say.
    """

    name: str
    shards: Path
    options: dict[str, Any]
    around: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    def make(self, shards: Path | None = None, **changes: Any) -> Loader:
        """Make the loader, without end."""
        usual = {"batch_size": BATCH, "epochs": None, **self.options}
        return make_loader(shards or self.shards, **(usual | changes))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A remedy, and what it gave.

    Attributes:
        case: name of the loader.
        verdict: what held it back.
        remedy: as it was predicted.
        measured: gain, in rounds.
    """

    case: str
    verdict: str
    remedy: Remedy
    measured: Spread

    @property
    def error(self) -> float:
        """Error of the predicted gain, relative to the one that was measured."""
        return self.remedy.gain / self.measured.median - 1


def cases(samples: int, workers: int) -> list[Case]:
    """All of them."""
    photos, mixed = packed(photographs(samples)), packed(mixed_photographs(samples))
    usual = ImageSpec(size=SIDE, normalize="imagenet")
    small = ImageSpec(size=224, normalize="imagenet")
    return [
        Case(
            name=f"{SIDE}x{SIDE}, {workers} workers",
            shards=photos,
            options={"image": usual, "num_workers": workers},
        ),
        Case(name="one worker", shards=photos, options={"image": usual, "num_workers": 1}),
        Case(
            name="large images to 224x224",
            shards=mixed,
            options={"image": small, "num_workers": workers},
        ),
        Case(
            name="Qwen2-VL",
            shards=mixed,
            options={
                "image": ImageSpec.preset("qwen2-vl", max_pixels=401408),
                "num_workers": workers,
            },
        ),
        Case(
            name="transform in Python",
            shards=photos,
            options={"image": small, "num_workers": workers, "transform": hold_lock},
        ),
        Case(
            name="slow storage",
            shards=photos,
            options={"image": small, "num_workers": workers},
            around=_slow_storage,
        ),
    ]


@contextmanager
def _slow_storage() -> Iterator[None]:
    """Every read takes some milliseconds, of no processor."""
    read = ShardStore.read

    def slow(*args: Any) -> Any:
        time.sleep(_LATENCY)
        return read(*args)

    storage: Any = ShardStore
    storage.read = slow
    try:
        yield
    finally:
        storage.read = read


def run_case(case: Case, *, seconds: float, rounds: int) -> tuple[Profile, list[Outcome]]:
    """Profile a loader, apply the remedies, and measure them."""
    with case.around():
        profile = profile_loader(case.make, shards=str(case.shards), seconds=seconds)
        applied = [remedy for remedy in profile.remedies if _can_be_applied(remedy)]
        entries = [
            Contestant(name=_BASE, make=partial(_runner, case, None, seconds / 4)),
            *(
                Contestant(name=remedy.name, make=partial(_runner, case, remedy, seconds / 4))
                for remedy in applied
            ),
        ]
        results = {result.name: result for result in compete(entries, rounds)}
    return profile, [
        Outcome(
            case=case.name,
            verdict=str(profile.bottleneck),
            remedy=remedy,
            measured=results[remedy.name].ratio(results[_BASE]),
        )
        for remedy in applied
        if results[remedy.name].runs
    ]


def _can_be_applied(remedy: Remedy) -> bool:
    # One whose gain was measured is no prediction, but is measured again for longer.
    return remedy.changes is not None or remedy.max_side is not None


def _runner(case: Case, remedy: Remedy | None, seconds: float) -> Callable[[], Run]:
    shards, changes = case.shards, {}
    if remedy is not None:
        changes = dict(remedy.changes or {})
        if remedy.max_side is not None:
            shards = case.shards.with_name(f"{case.shards.name}-{remedy.max_side}")
            pack_dataset(case.shards, shards, max_side=remedy.max_side)
    loader = case.make(shards, **changes)

    def run() -> Run:
        until = time.perf_counter() + _PATIENCE
        while True:
            done = run_pipeline(loader, seconds=seconds)
            others = done.usage.others / (done.usage.cores * done.usage.seconds)
            if others <= _DISTURBED or time.perf_counter() > until:
                return Run(samples=done.reading.samples, seconds=done.reading.seconds)
            time.sleep(1.0)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of a profile (default: %(default)s)"
    )
    options = parse(parser, samples=1024, rounds=5)
    where = machine("datapipe", "torch", "simplejpeg", cache="warm")
    chosen = cases(options.samples, options.workers)
    if unknown := set(options.only or ()) - {case.name for case in chosen}:
        parser.error(f"--only {sorted(unknown)}: the cases are {[case.name for case in chosen]}")
    chosen = [case for case in chosen if not options.only or case.name in options.only]
    found: list[tuple[Profile, list[Outcome]]] = []
    for case in chosen:
        print(f"--- {case.name}", flush=True)
        found.append(run_case(case, seconds=options.seconds, rounds=options.rounds))
    outcomes = [outcome for _, some in found for outcome in some]
    _print(where, outcomes)
    if options.json is not None:
        _write(options.json, where, found)


def _print(where: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    print(f"\nRemedies, predicted and measured; {where['cpu']}, {where['cores']} cores\n")
    print("| loader | remedy | predicted | measured (min-max) | error |")
    print("|---|---|---|---|---|")
    for outcome in outcomes:
        remedy, measured = outcome.remedy, outcome.measured
        said = f"{remedy.gain:.2f} x" + (" (short run)" if remedy.source == "measured" else "")
        print(
            f"| {outcome.case} | {remedy.title} | {said} | {{:.2f}} x ({{:.2f}}-{{:.2f}})".format(
                *measured
            )
            + f" | {outcome.error:+.0%} |"
        )
    if outcomes:
        worst = max(abs(outcome.error) for outcome in outcomes)
        within = sum(abs(outcome.error) <= 0.2 for outcome in outcomes)
        print(f"\n{within} of {len(outcomes)} within 20 %, the worst {worst:.0%} off")


def _write(
    path: Path, where: dict[str, Any], found: Sequence[tuple[Profile, list[Outcome]]]
) -> None:
    content = {
        "title": "Remedies, predicted and measured",
        "machine": where,
        "cases": [
            {
                "verdict": str(profile.bottleneck),
                "samples_per_second": profile.rate,
                "model_factor": profile.forecast.factor,
                "remedies": [
                    outcome.remedy.to_dict()
                    | {
                        "case": outcome.case,
                        "measured_gain": outcome.measured._asdict(),
                        "error": outcome.error,
                    }
                    for outcome in outcomes
                ],
            }
            for profile, outcomes in found
        ],
    }
    write_json(path, content)


if __name__ == "__main__":
    main()
