"""Gains that `datapipe profile` predicts for its remedies, and those of applying them.

    python -m benchmarks.profile

Each case is a loader with something to be mended. It is profiled; then every remedy is applied, and
the loaders run in turn with the unchanged one. The error is that of the predicted gain. A run that
other processes have disturbed is repeated, for a quarter of a minute.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.common import Contestant, Run, chosen, command, compete, machine, parse, show_as
from benchmarks.data import mixed_photographs, packed, photographs
from benchmarks.peers.work import BATCH, SIDE
from benchmarks.transforms import hold_lock
from datapipe import ImageSpec, Loader, make_loader, pack_dataset
from datapipe.profile.forecast import Remedy
from datapipe.profile.job import profile_loader
from datapipe.profile.pipeline import run_pipeline
from datapipe.store.shards import ShardStore

_LATENCY = 0.004  # seconds of a read from the slow storage
_DISTURBED = 0.05  # of the cores' time, that others take
_PATIENCE = 15.0  # seconds, in which a run is repeated
_BASE = "as it is"


class Case(NamedTuple):
    """A loader with something to be mended; `around` is a context that it runs in."""

    name: str
    shards: Path
    options: dict[str, Any]
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def make(self, shards: Path | None = None, **changes: Any) -> Loader:
        usual = {"batch_size": BATCH, "epochs": None, **self.options}
        return make_loader(shards or self.shards, **(usual | changes))


def cases(samples: int, workers: int) -> list[Case]:
    photos, mixed = packed(photographs(samples)), packed(mixed_photographs(samples))
    usual = ImageSpec(size=SIDE, normalize="imagenet")
    small = {"image": ImageSpec(size=224, normalize="imagenet"), "num_workers": workers}
    qwen = ImageSpec.preset("qwen2-vl", max_pixels=401408)
    name = f"{SIDE}x{SIDE}, {workers} workers"
    return [
        Case(name, photos, {"image": usual, "num_workers": workers}),
        Case("one worker", photos, {"image": usual, "num_workers": 1}),
        Case("large images to 224x224", mixed, small),
        Case("Qwen2-VL", mixed, {"image": qwen, "num_workers": workers}),
        Case("transform in Python", photos, small | {"transform": hold_lock}),
        Case("slow storage", photos, small, _slow_storage),
    ]


@contextmanager
def _slow_storage() -> Iterator[None]:
    """Every read takes some milliseconds, of no processor."""
    read = ShardStore.read

    def slow(*args: Any) -> Any:
        time.sleep(_LATENCY)
        return read(*args)

    with patch.object(ShardStore, "read", slow):
        yield


def run_case(case: Case, *, seconds: float, rounds: int) -> dict[str, Any]:
    with case.around():
        profile = profile_loader(case.make, shards=str(case.shards), seconds=seconds)
        # One whose gain was measured is no prediction, but is measured again for longer.
        applied = {r.name: r for r in profile.remedies if (r.changes, r.max_side) != (None, None)}
        base, *results = compete(
            [
                Contestant(name, partial(_runner, case, remedy, seconds / 4))
                for name, remedy in {_BASE: None, **applied}.items()
            ],
            rounds,
        )
    rows = []
    for result in (one for one in results if one.runs):
        remedy, measured = applied[result.name], result.ratio(base)
        row = {"case": case.name, "measured_gain": measured._asdict()}
        rows.append(remedy.to_dict() | row | {"error": remedy.gain / measured.median - 1})
    return {
        "verdict": str(profile.bottleneck),
        "samples_per_second": profile.rate,
        "model_factor": profile.forecast.factor,
        "remedies": rows,
    }


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
    parser = command("profile", __doc__)
    about = "of a profile (default: %(default)s)"
    parser.add_argument("--seconds", type=float, default=6.0, help=about)
    options = parse(parser, samples=1024, rounds=5)
    where = machine("datapipe", "torch", "simplejpeg", cache="warm")
    by_name = {case.name: case for case in cases(options.samples, options.workers)}
    found = []
    for name in chosen(by_name, options.only):
        print(f"--- {name}", flush=True)
        found.append(run_case(by_name[name], seconds=options.seconds, rounds=options.rounds))
    content = {"title": "Remedies, predicted and measured", "machine": where, "cases": found}
    show_as("remedies", content, options.json)
    if errors := [abs(row["error"]) for case in found for row in case["remedies"]]:
        within = sum(error <= 0.2 for error in errors)
        print(f"{within} of {len(errors)} within 20 %, the worst {max(errors):.0%} off")


if __name__ == "__main__":
    main()
