"""`tune_workers` against the truth, and against the loop of the textbooks.

    python -m benchmarks.tune [--only synthetic busy torch datapipe]

- synthetic: the hundred sweeps of tests/tune, on a virtual clock: loaders of known costs on
  machines that drift. Then both ways on the same loaders, with the settings of the textbooks.
- busy: five real loaders whose best number of workers is known, while a process of low priority
  keeps the machine busy. All must be right.
- torch, datapipe: a torch DataLoader and datapipe's own on photographs. The truth is measured after
  the choices, interleaved, with longer runs of them and of every likely setting.

The loop of the textbooks tries 0, 2, 4, 8, 16 and 32 workers, times ten batches of each from the
start, and takes the least.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import Row, chosen, command, machine, parse, show, show_as
from benchmarks.data import packed, photographs
from benchmarks.tune.loaders import known
from datapipe import ImageSpec, make_loader, tune_workers
from datapipe.tune.job import tune
from datapipe.tune.result import TuneResult
from datapipe.tune.setting import Setting, grid
from datapipe.tune.sweep import Goal
from datapipe.tune.trial import Machine, Trial, TrialRun
from tests.tune.cases import hundred
from tests.tune.synthetic import SETTINGS, Case, Clock, Loader, is_right, true_rate

Settings = Sequence[tuple[int, int | None]]
Choice = tuple[str, int, int | None, float]
"""Choice of a method: its name, workers, prefetch, and the seconds that it took."""

PARTS = ("synthetic", "busy", "torch", "datapipe")
WORKERS = (0, 2, 4, 8, 16, 32)  # of the textbooks
_BATCHES = 10  # that they time
_SIDE, _BATCH = 336, 32
_SECONDS = 2.0  # of a run that the truth is measured with
_DISTURBED = 0.1  # of the cores' time, that others take; such a run is repeated
_TRIES = 3


@dataclass(frozen=True)
class Answer:
    """Choice of one method, "tune_workers" or "textbook", for one loader.

    `right` says if it is the smallest that is as fast as any, None if that is unknown; `lost` is
    the share of the best rate that is lost; `seconds` were taken of the `budget`.
    """

    loader: str
    way: str
    workers: int
    prefetch: int | None
    right: bool | None
    lost: float | None
    seconds: float
    budget: float | None

    @classmethod
    def of(
        cls,
        loader: str,
        choice: Choice,
        budget: float,
        *,
        right: bool | None = None,
        truth: Mapping[tuple[int, int | None], float] | None = None,
    ) -> Answer:
        """Return a choice, judged by the rates that are true for each setting."""
        way, workers, ahead, seconds = choice
        lost = None if truth is None else 1 - truth[workers, ahead] / max(truth.values())
        given = budget if way == "tune_workers" else None
        return cls(loader, way, workers, ahead, right, lost, seconds, given)


def choose(make: Callable[..., Any], workers: Sequence[int], budget: float) -> list[Choice]:
    result = tune_workers(make, num_workers=workers, budget=budget)
    print(result.reason, file=sys.stderr, flush=True)
    return [_chosen(result), textbook(make)]


def _chosen(result: TuneResult) -> Choice:
    return "tune_workers", result.num_workers, result.prefetch_factor, result.seconds


def textbook(
    make: Callable[..., Iterable[Any]], clock: Callable[[], float] = time.perf_counter
) -> Choice:
    """Choose the number of workers whose first ten batches come soonest, with start.

    One measurement each, with the prefetch of torch's default.
    """
    began = clock()
    times = {}
    for workers in WORKERS:
        start = clock()
        batches = iter(make(num_workers=workers, prefetch_factor=2 if workers else None))
        for _ in range(_BATCHES):
            next(batches)
        times[workers] = clock() - start
        for name in ("close", "_shutdown_workers"):
            if hasattr(batches, name):
                getattr(batches, name)()
        del batches
    chosen = min(times, key=lambda workers: times[workers])
    return "textbook", chosen, 2 if chosen else None, clock() - began


def synthetic() -> dict[str, list[Answer]]:
    """Run the hundred sweeps; and both methods on the same loaders, with textbook settings."""
    swept, compared = [], []
    few = ((0, None), *((workers, 2) for workers in WORKERS[1:]))
    for number, case in enumerate(hundred()):
        swept.append(_judge(case, _sweep(case, SETTINGS), SETTINGS))
        clock = Clock()
        compared.append(_judge(case, _sweep(case, few), few))
        compared.append(_judge(case, textbook(_maker(case, clock), clock), few))
        if (number + 1) % 20 == 0:
            print(f"{number + 1} of 100 sweeps", file=sys.stderr, flush=True)
    return {"a hundred sweeps": swept, "with the settings of the textbooks": compared}


def _sweep(case: Case, settings: Settings) -> Choice:
    clock = Clock()
    ahead = {ahead for _, ahead in settings if ahead is not None}
    tried = grid({workers for workers, _ in settings}, ahead)
    machine = Machine(clock=clock, sleep=clock.sleep, meter=clock.meter)
    return _chosen(tune(_maker(case, clock), tried, Goal(budget=case.budget), machine))


def _judge(case: Case, choice: Choice, settings: Settings) -> Answer:
    _, workers, ahead, _ = choice
    truth = {setting: true_rate(case.machine, *setting) for setting in settings}
    right = is_right(case, workers, ahead, settings=settings)
    return Answer.of(case.machine.name, choice, case.budget, right=right, truth=truth)


def _maker(case: Case, clock: Clock) -> Callable[..., Loader]:
    """Return what makes the synthetic loaders of a case, each with noise of its own."""
    seeds = count(1000 * case.seed)

    def make(**given: Any) -> Loader:
        return Loader(case.machine, clock, drift=case.drift, seed=next(seeds), **given)

    return make


def busy(budget: float) -> list[Answer]:
    """Five real loaders while another process keeps the machine busy."""
    answers = []
    with _neighbour():
        for name, (make, right) in known(len(os.sched_getaffinity(0))).items():
            print(name, file=sys.stderr, flush=True)
            for choice in choose(make, (0, 1, 2, 4, 8), budget):
                answers.append(Answer.of(name, choice, budget, right=choice[1] in right))
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

    choices = choose(make, (0, 1, *WORKERS[1:]), budget)
    truth = _truth(make, {(workers, ahead) for _, workers, ahead, _ in choices}, rounds)
    return [Answer.of(name, choice, budget, truth=truth) for choice in choices]


def _truth(
    make: Callable[..., Any], chosen: set[tuple[int, int | None]], rounds: int
) -> dict[tuple[int, int | None], float]:
    """Rates of what was chosen and of its rivals, over the mean of each interleaved round."""
    pairs = sorted(chosen | {(workers, 2) for workers in (1, 2, 4, 8)})
    rates: dict[tuple[int, int | None], list[float]] = {pair: [] for pair in pairs}
    for number in range(rounds):
        turn = number % len(pairs)
        for pair in pairs[turn:] + pairs[:turn]:
            setting = Setting(num_workers=pair[0], prefetch_factor=pair[1])
            trial = min(_undisturbed(make, setting), key=_others)
            rates[pair].append(trial.rate)
            said = f"round {number + 1} of {rounds}: {trial.setting}: {trial.rate:.1f}/s, others "
            said += f"take {_others(trial):.0%} of the cores"
            print(said, file=sys.stderr, flush=True)
    levels = [statistics.fmean(each) for each in zip(*rates.values(), strict=True)]
    return {
        pair: statistics.median(rate / level for rate, level in zip(each, levels, strict=True))
        for pair, each in rates.items()
    }


def _undisturbed(make: Callable[..., Any], setting: Setting) -> Iterator[Trial]:
    """Trials of a setting, until other processes leave one alone, or there were three."""
    for _ in range(_TRIES):
        deadline = time.perf_counter() + 20 * _SECONDS
        run = TrialRun(
            setting=setting, machine=Machine(), seconds=_SECONDS, deadline=deadline, probe=True
        )
        trial = run.run(make, round=0)
        yield trial
        if _others(trial) < _DISTURBED:
            return


def _others(trial: Trial) -> float:
    """Share of the cores' time that other processes took."""
    assert trial.figures is not None
    assert trial.figures.usage is not None
    return trial.figures.usage.others_share


def main() -> None:
    parser = command("tune", __doc__)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of a real sweep")
    options = parse(parser, samples=1024, rounds=3)
    parts = chosen(PARTS, options.only)
    where = machine("torch", cache="warm")
    answers: dict[str, list[Answer]] = {}
    if "synthetic" in parts:
        answers |= synthetic()
    if "busy" in parts:
        answers["busy"] = busy(options.budget)
    for name in ("torch", "datapipe"):
        if name in parts:
            answers[name] = real(name, options.samples, options.budget, options.rounds)
    for part, made in answers.items():
        show(part, _by_loader(made))
    rows = {part: [asdict(answer) for answer in made] for part, made in answers.items()}
    content = {"machine": where, **rows}
    show_as("tune", content, options.json)
    if spent := [a.seconds / a.budget for made in answers.values() for a in made if a.budget]:
        print(f"at most {max(spent):.0%} of the budget was spent")


def _by_loader(answers: Sequence[Answer]) -> Iterator[Row]:
    """Yield a row for each loader, with the methods side by side."""
    for loader in dict.fromkeys(answer.loader for answer in answers):
        row: Row = {"loader": loader}
        for way in dict.fromkeys(answer.way for answer in answers):
            mine = [a for a in answers if (a.loader, a.way) == (loader, way)]
            right = [a.right for a in mine if a.right is not None]
            lost = [100 * a.lost for a in mine if a.lost is not None]
            row[f"{way}: right"] = f"{sum(right)} of {len(right)}" if right else "-"
            row[f"{way}: workers"] = ", ".join(map(str, sorted({a.workers for a in mine})))
            row[f"{way}: rate lost %"] = f"{statistics.fmean(lost):.1f}" if lost else "-"
            row[f"{way}: seconds"] = round(statistics.fmean(a.seconds for a in mine))
        yield row


if __name__ == "__main__":
    main()
