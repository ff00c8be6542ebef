"""View of a plan: the samples of every rank at a step, without reading them; `exclude=`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from datapipe.declared import Natural, Refused, checked, shorten, take_int
from datapipe.errors import PlanError
from datapipe.index.columns import find_keys
from datapipe.index.dataset import Dataset
from datapipe.loader.schedule.block_cache import PlannedBlocks
from datapipe.loader.schedule.origin import Origin
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.plan.steps import Exclusion, Position, Step, walk
from datapipe.report.table import counted


@dataclass(frozen=True, kw_only=True)
class RankView:
    """Samples of one rank at a step."""

    rank: int
    # `keys`, `sources`, `datasets`, `samples`: of each sample, in the order of the batch
    keys: list[str]
    sources: list[str]
    datasets: list[str]
    samples: list[int]
    valid: list[bool]  # false for repeats at the end of an epoch, and for excluded samples
    units: list[int]  # number of samples in each unit, such as each pack
    # `tokens`, `labels`, `images`: of each sample; None if no tokens were counted
    tokens: list[int] | None
    labels: list[int] | None
    images: list[int] | None

    def _size(self, number: int) -> str:
        if self.tokens is None or self.labels is None or self.images is None:
            return ""
        return (
            f"  {self.tokens[number]:>6,} tokens, {self.labels[number]:>5,} labels, "
            f"{self.images[number]:>2} images"
        )


@dataclass(frozen=True, kw_only=True)
class StepView:
    """Samples of all ranks at a step; `exclude=` takes it."""

    step: int  # its number in the epoch
    epoch: int
    # `start`, `stop`: its units, counted from the epoch's start
    start: int
    stop: int
    labels: int | None  # tokens predicted in it, over all ranks; None if no tokens were counted
    ranks: list[RankView]
    plan: dict[str, Any]  # all that the order depends on, for `exclude=` to compare

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"epoch {self.epoch}, step {self.step}: units {self.start:,} to {self.stop - 1:,}"]
        several = len({name for view in self.ranks for name in view.datasets}) > 1
        for view in self.ranks:
            total = "" if view.tokens is None else f", {sum(view.tokens):,} tokens"
            lines.append(f"  rank {view.rank}: {counted(len(view.keys), 'sample')}{total}")
            for number, key in enumerate(view.keys):
                size = view._size(number)
                out = "" if view.valid[number] else "  (not valid)"
                dataset = f"  {view.datasets[number]}:" if several else ""
                lines.append(f"    {key}{size}{dataset}  {view.sources[number]}{out}")
        return "\n".join(lines)


class PlanView:
    """Plan of a loader, epoch by epoch."""

    def __init__(self, dataset: Dataset, schedule: Schedule, epoch: int) -> None:
        self._dataset = dataset
        self._schedule = schedule
        self._plan, self._options = schedule.plan, schedule.options
        self._epoch = epoch

    @property
    def order(self) -> dict[str, Any]:
        """All that the order depends on, for JSON."""
        return self._schedule.order()

    @checked(PlanError)
    def step(self, step: int, *, epoch: Natural | None = None) -> StepView:
        """Return the samples of all ranks at a step, counted from the epoch's start.

        If units are packs or batches, the blocks before it are planned first. None takes the
        loader's current epoch.

        Raises:
            PlanError: the epoch has no such step.
        """
        return self._view(step, self._find(step, epoch))

    def position(self, step: int, epoch: int | None = None) -> Position:
        """Return where a step begins; `PlanError` if the epoch has no such step."""
        return self._find(step, epoch).start

    def _find(self, step: int, epoch: int | None) -> Step:
        epoch = self._epoch if epoch is None else epoch
        blocks = self._schedule.blocks(epoch)
        position = blocks.locate(step * self._options.share) if step >= 0 else None
        found = None
        if position is not None:
            # Excluded samples are shown too.
            found = next(self._walk(blocks, position), None)
        if found is None:
            steps = -(-self._schedule.count_units(epoch) // self._options.share)
            raise PlanError(
                f"step {step}: epoch {epoch} has no such step; its steps are 0 to {steps - 1}"
            )
        return found

    @checked(PlanError)
    def shares(self, epoch: Natural | None = None) -> dict[str, float]:
        """Return the share of each dataset of a mixture in the samples of an epoch.

        Weights say what is asked for; this is what is planned, to the sample. The shares sum to 1;
        there are none if the loader's data are no mixture. None takes the loader's current epoch.

        Raises:
            PlanError: the epoch was drawn from a mixture that was changed since.

        Examples:
            >>> mixture = {"shards/": 3, "more": {"path": "tars/", "weight": 1}}
            >>> loader = datapipe.make_loader(mixture, batch_size=4)
            >>> loader.plan.shares()
            {'shards': 0.75, 'more': 0.25}
        """
        origin = self._schedule.origin
        counts = origin.counts(self._epoch if epoch is None else epoch)
        total = sum(counts.values())
        return {name: count / total for name, count in counts.items() if name}

    @property
    def shares_change(self) -> bool:
        """True if the shares of a mixture change in the course of a run, as a schedule says."""
        legs = self._schedule.origin.legs.legs
        return len(legs) > 1 or len(legs[0].rates.starts) > 1

    def steps(self, *, epoch: int | None = None) -> Iterator[Step]:
        """Return all steps of an epoch as arrays, with excluded samples."""
        epoch = self._epoch if epoch is None else epoch
        return self._walk(self._schedule.blocks(epoch), Position(epoch))

    def _walk(self, blocks: PlannedBlocks, position: Position) -> Iterator[Step]:
        return walk(blocks, position, share=self._options.share, drop_last=self._plan.drop_last)

    def _view(self, number: int, step: Step) -> StepView:
        excluded = self._schedule.exclusion
        out = excluded.of_units(step.start.epoch, step.start.consumed, step.stop.consumed)
        step = replace(step, excluded=excluded.mark(step.units, out))
        return StepView(
            step=number,
            epoch=step.start.epoch,
            start=step.start.consumed,
            stop=step.stop.consumed,
            labels=step.labels,
            ranks=[self._rank(step, rank) for rank in range(self._options.world_size)],
            plan=self._schedule.order(),
        )

    def _rank(self, step: Step, rank: int) -> RankView:
        share = self._options.deal(step, rank)
        samples = share.units.numbers
        columns, sizes = self._dataset.columns, share.units.sizes
        return RankView(
            rank=rank,
            keys=columns.keys(samples),
            sources=columns.sources(samples),
            datasets=self._dataset.dataset_names(samples),
            samples=samples.tolist(),
            valid=share.valid.tolist(),
            units=(share.units.offsets[1:] - share.units.offsets[:-1]).tolist(),
            tokens=sizes.tokens.tolist() if sizes else None,
            labels=sizes.labels.tolist() if sizes else None,
            images=sizes.images.tolist() if sizes else None,
        )


def parse_exclude(exclude: Any, origin: Origin) -> tuple[Exclusion, list[tuple[str, Any]]]:
    """Return the samples and ranges of units that `exclude=` names, and the plans of its steps.

    A step is valid only in the plan that it was seen in. `exclude` is one or several of: keys of
    samples (str), in a mixture also "dataset:key", numbers of samples (int), steps as
    `loader.plan.step` returns them, or such steps as dicts with `epoch`, `start` and `stop`. All
    else is a `PlanError`, and so is a key or number that no sample has.
    """
    several = isinstance(exclude, Iterable) and getattr(exclude, "ndim", None) != 0
    if not several or isinstance(exclude, str | bytes | StepView | Mapping):
        exclude = (exclude,)
    keys: list[str] = []
    samples: list[int] = []
    units: dict[int, list[tuple[int, int]]] = {}
    plans: list[tuple[str, Any]] = []
    for item in exclude:
        if isinstance(item, str):
            keys.append(item)
        elif (number := _whole(item)) is not None:
            samples.append(number)
        else:
            epoch, start, stop = _range(item)
            units.setdefault(epoch, []).append((start, stop))
            plan = item.plan if isinstance(item, StepView) else item.get("plan")
            if isinstance(plan, Mapping):
                plans.append((f"units {start} to {stop - 1} of epoch {epoch}", plan))
    samples += _numbers(keys, origin)
    last = int(origin.edges[-1]) - 1
    for number in samples:
        if not 0 <= number <= last:
            raise PlanError(f"exclude names sample {number}, the dataset has samples 0 to {last}")
    return Exclusion(np.unique(np.array(samples, np.int64)), units), plans


def _whole(item: Any) -> int | None:
    try:
        return take_int(item)
    except Refused:
        return None


def _range(item: Any) -> tuple[int, int, int]:
    if isinstance(item, StepView):
        return item.epoch, item.start, item.stop
    try:
        epoch, start, stop = (take_int(item[name]) for name in ("epoch", "start", "stop"))
    except Exception:  # whatever the class of `item` raises
        epoch, start, stop = 0, 0, -1
    if not (epoch >= 0 and 0 <= start <= stop):
        raise PlanError(
            f"exclude {shorten(item)}: give keys or numbers of samples, or steps as "
            "loader.plan.step(n) returns them (or dicts with epoch, start and stop)"
        )
    return epoch, start, stop


def _numbers(keys: list[str], origin: Origin) -> list[int]:
    """Return the samples with some keys, each "dataset:key", or a key that one dataset has."""
    parts = {part.name: number for number, part in enumerate(origin.parts) if part.name}
    anywhere: list[str] = []
    named: dict[int, list[str]] = {}
    for key in keys:
        name = next((name for name in _prefixes(key) if name in parts), None)
        if name is None:
            anywhere.append(key)
        else:
            named.setdefault(parts[name], []).append(key[len(name) + 1 :])
    numbers: list[int] = []
    holders: dict[str, list[str]] = {key: [] for key in anywhere}
    for number in range(len(origin.parts)) if anywhere else sorted(named):
        part, own = origin.parts[number], named.get(number, [])
        found = find_keys(part.data.columns(), [*own, *anywhere])
        if missing := [key for key in own if key not in found]:
            raise PlanError(
                f"exclude names {shorten(f'{part.name}:{missing[0]}')}, but no sample of dataset "
                f"{part.name!r} has this key; loader.plan.step(n) shows keys"
            )
        for key in found.keys() & holders.keys():
            holders[key].append(part.name)
        numbers += [int(origin.edges[number]) + row for row in found.values()]
    for key, held in holders.items():
        if not held:
            where = "" if origin.is_alone else " of any dataset"
            raise PlanError(
                f"exclude names {shorten(key)}, but no sample{where} has this key; "
                "loader.plan.step(n) shows keys"
            )
        if len(held) > 1:
            more = f" and {len(held) - 3} more" if len(held) > 3 else ""
            raise PlanError(
                f"exclude names {shorten(key)}, which is a key in several datasets: "
                f"{', '.join(map(shorten, held[:3]))}{more}; name the dataset too, such as "
                f"{shorten(f'{held[0]}:{key}')}"
            )
    return numbers


def _prefixes(key: str) -> list[str]:
    """Return what is before each colon of a key, the longest first."""
    parts = key.split(":")
    return [":".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
