"""`tune_workers` against the truth, and against the loop of the textbooks.

    python -m benchmarks.tune [--only synthetic busy torch datapipe]

- synthetic: the hundred sweeps of tests/tune, on a virtual clock: loaders of known costs on
  machines that drift. How many are right, how much of the rate is lost, of the budget spent; then
  both ways on the same loaders, with the settings of the textbooks.
- busy: five real loaders whose best number of workers is known, while a process of low priority
  keeps the machine busy. All must be right.
- torch, datapipe: a torch DataLoader and datapipe's own on photographs. What each way chooses; the
  truth is measured afterwards, interleaved, with longer runs of it and of every likely setting.

The loop of the textbooks tries 0, 2, 4, 8, 16 and 32 workers, times ten batches of each from the
start, and takes the least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import machine, parse, write_json
from benchmarks.data import packed, photographs
from benchmarks.tune.loaders import known
from benchmarks.tune.textbook import WORKERS, textbook
from datapipe import ImageSpec, make_loader, tune_workers
from datapipe.tune.job import tune
from datapipe.tune.setting import Setting, grid
from datapipe.tune.sweep import Goal
from datapipe.tune.trial import Machine, Trial, TrialOptions, run_trial
from tests.tune.cases import hundred
from tests.tune.synthetic import SETTINGS, Case, Clock, Loader, is_right, true_rate

Settings = Sequence[tuple[int, int | None]]

PARTS = ("synthetic", "busy", "torch", "datapipe")
_SIDE, _BATCH = 336, 32
_SECONDS = 2.0  # of a run that the truth is measured with
_DISTURBED = 0.1  # of the cores' time, that others take; such a run is repeated
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Choice of one method for one loader.

    Attributes:
        loader: what was tuned.
        way: "tune_workers" or "textbook".
        workers, prefetch: chosen.
        right: whether it is the smallest that is as fast as any; None if that is unknown.
        lost: share of the best rate that is lost.
        seconds: that it took.
        budget: seconds allowed; None for none.
    """

    loader: str
    way: str
    workers: int
    prefetch: int | None
    right: bool | None
    lost: float | None
    seconds: float
    budget: float | None = None


def synthetic() -> dict[str, list[Answer]]:
    """Run the hundred sweeps; and both methods on the same loaders, with textbook settings."""
    swept, compared = [], []
    few = ((0, None), *((workers, 2) for workers in WORKERS[1:]))
    for number, case in enumerate(hundred()):
        swept.append(_sweep(case, SETTINGS))
        clock = Clock()
        workers, seconds = textbook(_Maker(case, clock), clock)
        compared.append(_sweep(case, few))
        compared.append(
            _answer("textbook", case, workers, 2 if workers else None, seconds, few, None)
        )
        if (number + 1) % 20 == 0:
            print(f"{number + 1} of 100 sweeps", file=sys.stderr, flush=True)
    return {"a hundred sweeps": swept, "with the settings of the textbooks": compared}


def _sweep(case: Case, settings: Settings) -> Answer:
    clock = Clock()
    tried = grid(
        {workers for workers, _ in settings}, {ahead for _, ahead in settings if ahead is not None}
    )
    machine = Machine(clock=clock, sleep=clock.sleep, meter=clock.meter)
    result = tune(_Maker(case, clock), tried, Goal(budget=case.budget), machine)
    chosen = result.num_workers, result.prefetch_factor
    return _answer("tune_workers", case, *chosen, result.seconds, settings, case.budget)


def _answer(
    way: str,
    case: Case,
    workers: int,
    ahead: int | None,
    seconds: float,
    settings: Settings,
    budget: float | None,
) -> Answer:
    best = max(true_rate(case.machine, *setting) for setting in settings)
    return Answer(
        loader=case.machine.name,
        way=way,
        workers=workers,
        prefetch=ahead,
        right=is_right(case, workers, ahead, settings=settings),
        lost=1 - true_rate(case.machine, workers, ahead) / best,
        seconds=seconds,
        budget=budget,
    )


class _Maker:
    """Makes the synthetic loaders of a case, each with noise of its own."""

    def __init__(self, case: Case, clock: Clock) -> None:
        self._case = case
        self._clock = clock
        self._made = 0

    def __call__(self, num_workers: int, prefetch_factor: int | None) -> Loader:
        self._made += 1
        return Loader(
            self._case.machine,
            self._clock,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            drift=self._case.drift,
            seed=1000 * self._case.seed + self._made - 1,
        )


def busy(budget: float) -> list[Answer]:
    """Five real loaders while another process keeps the machine busy."""
    answers = []
    with _neighbour():
        for entry in known(len(os.sched_getaffinity(0))):
            result = tune_workers(entry.make, num_workers=(0, 1, 2, 4, 8), budget=budget)
            workers, seconds = textbook(entry.make)
            for way, chosen, ahead, took in (
                ("tune_workers", result.num_workers, result.prefetch_factor, result.seconds),
                ("textbook", workers, 2 if workers else None, seconds),
            ):
                answer = Answer(
                    loader=entry.name,
                    way=way,
                    workers=chosen,
                    prefetch=ahead,
                    right=chosen in entry.right,
                    lost=None,
                    seconds=took,
                    budget=budget if way == "tune_workers" else None,
                )
                answers.append(answer)
            print(f"{entry.name}: {result.reason}", file=sys.stderr, flush=True)
    return answers


_NEIGHBOUR = """
import os, sys, threading, time
if os.fork():
    os._exit(0)  # no descendant of the benchmark, whose own CPU time is metered
os.nice(10)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        pass
    time.sleep(1.0)
"""


@contextmanager
def _neighbour() -> Iterator[None]:
    """Run a process that computes half of the time, in stretches of a second, at low priority."""
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()  # which ends it
        process.wait()


class _Photographs(Dataset[torch.Tensor]):
    """Loose files, decoded and resized by Pillow, as a plain torch script does it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        import numpy as np
        from PIL import Image

        with Image.open(self._paths[index % len(self._paths)]) as image:
            small = image.convert("RGB").resize((_SIDE, _SIDE))
        return torch.from_numpy(np.asarray(small).copy())


def real(name: str, samples: int, budget: float, rounds: int) -> list[Answer]:
    """Measure for a loader of photographs what each method chooses, and then the truth."""
    photos = photographs(samples)
    shards, paths = packed(photos), photos.paths()

    def make(**given: Any) -> Any:
        if name == "torch":
            return DataLoader(_Photographs(paths), batch_size=_BATCH, **given)
        return make_loader(
            shards, batch_size=_BATCH, image=ImageSpec(size=_SIDE), epochs=None, **given
        )

    result = tune_workers(make, num_workers=(0, 1, *WORKERS[1:]), budget=budget)
    print(f"{name}: {result.reason}", file=sys.stderr, flush=True)
    workers, seconds = textbook(make)
    choices = [
        ("tune_workers", result.num_workers, result.prefetch_factor, result.seconds),
        ("textbook", workers, 2 if workers else None, seconds),
    ]
    truth = _truth(make, {(chosen, ahead) for _, chosen, ahead, _ in choices}, rounds)
    best = max(truth.values())
    return [
        Answer(
            loader=name,
            way=way,
            workers=chosen,
            prefetch=ahead,
            right=None,
            lost=1 - truth[chosen, ahead] / best,
            seconds=took,
            budget=budget if way == "tune_workers" else None,
        )
        for way, chosen, ahead, took in choices
    ]


def _truth(
    make: Callable[..., Any], chosen: set[tuple[int, int | None]], rounds: int
) -> dict[tuple[int, int | None], float]:
    """Rates of what was chosen and of its rivals, over the mean of each interleaved round."""
    pairs = sorted(chosen | {(workers, 2) for workers in (1, 2, 4, 8)})
    settings = {pair: Setting(num_workers=pair[0], prefetch_factor=pair[1]) for pair in pairs}
    rates: dict[tuple[int, int | None], list[float]] = {pair: [] for pair in pairs}
    for number in range(rounds):
        turn = number % len(pairs)
        for pair in pairs[turn:] + pairs[:turn]:
            trial = min(_undisturbed(make, settings[pair]), key=_others)
            rates[pair].append(trial.rate)
            print(
                f"round {number + 1} of {rounds}: {trial.setting}: {trial.rate:.1f}/s, others take "
                f"{_others(trial):.0%} of the cores",
                file=sys.stderr,
                flush=True,
            )
    levels = [statistics.fmean(each) for each in zip(*rates.values(), strict=True)]
    return {
        pair: statistics.median(rate / level for rate, level in zip(each, levels, strict=True))
        for pair, each in rates.items()
    }


def _undisturbed(make: Callable[..., Any], setting: Setting) -> Iterator[Trial]:
    """Trials of a setting, until other processes leave one alone, or there were three."""
    for _ in range(_TRIES):
        trial = run_trial(
            make,
            setting,
            TrialOptions(
                seconds=_SECONDS, deadline=time.perf_counter() + 20 * _SECONDS, probe=True
            ),
            Machine(),
            round=0,
        )
        yield trial
        if _others(trial) < _DISTURBED:
            return


def _others(trial: Trial) -> float:
    """Share of the cores' time that other processes took."""
    assert trial.figures is not None
    assert trial.figures.usage is not None
    return trial.figures.usage.others_share


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of a real sweep")
    options = parse(parser, samples=1024, rounds=3)
    parts = options.only or PARTS
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"--only {sorted(unknown)}: the parts are {', '.join(PARTS)}")
    where = machine("torch", cache="warm")
    answers: dict[str, list[Answer]] = {}
    if "synthetic" in parts:
        answers |= synthetic()
    if "busy" in parts:
        answers["busy"] = busy(options.budget)
    for name in ("torch", "datapipe"):
        if name in parts:
            answers[name] = real(name, options.samples, options.budget, options.rounds)
    print(
        f"\n{where['cpu']}, {where['cores']} cores; Python {where['python']}, torch "
        f"{where['versions']['torch']}; load at the start {where['load']}"
    )
    for part, made in answers.items():
        print(f"\n{part}\n")
        for line in _table(made):
            print(line)
        print(_summary(made))
    if options.json is not None:
        rows = {part: [asdict(answer) for answer in made] for part, made in answers.items()}
        write_json(options.json, {"machine": where, **rows})


def _table(answers: Sequence[Answer]) -> Iterator[str]:
    """Return a row for each loader, with the methods side by side."""
    ways = dict.fromkeys(answer.way for answer in answers)
    what = ("right", "workers", "rate lost %", "seconds")
    rows = [["loader", *(f"{way}: {name}" for way in ways for name in what)]]
    for loader in dict.fromkeys(answer.loader for answer in answers):
        row = [loader]
        for way in ways:
            mine = [a for a in answers if (a.loader, a.way) == (loader, way)]
            known_right = [a.right for a in mine if a.right is not None]
            lost = [a.lost for a in mine if a.lost is not None]
            row += [
                f"{sum(known_right)} of {len(known_right)}" if known_right else "-",
                ", ".join(str(workers) for workers in sorted({a.workers for a in mine})),
                f"{100 * statistics.fmean(lost):.1f}" if lost else "-",
                f"{statistics.fmean(a.seconds for a in mine):.0f}",
            ]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"


def _summary(answers: Sequence[Answer]) -> str:
    said = []
    for way in dict.fromkeys(answer.way for answer in answers):
        mine = [answer for answer in answers if answer.way == way]
        parts = []
        known_right = [a.right for a in mine if a.right is not None]
        if known_right:
            parts.append(f"{sum(known_right)} of {len(known_right)} right")
        lost = [a.lost for a in mine if a.lost is not None]
        if lost:
            parts.append(
                f"rate lost {100 * statistics.fmean(lost):.1f} % on average, "
                f"{100 * max(lost):.1f} % at worst"
            )
        parts.append(f"{statistics.fmean(a.workers for a in mine):.1f} workers on average")
        over = [a.seconds / a.budget for a in mine if a.budget]
        if over:
            parts.append(f"at most {100 * max(over):.0f} % of the budget")
        said.append(f"{way}: {', '.join(parts)}")
    return "\n" + "\n".join(said)


if __name__ == "__main__":
    main()
