"""Steps of a run: which, how many, and the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from datapipe.errors import EndlessError, PlanError
from datapipe.loader.schedule.block_cache import BlockFolder, PlannedBlocks
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.schedule.origin import Origin
from datapipe.loader.schedule.state import Run, differences, dump_state
from datapipe.plan.epoch import EpochPlan
from datapipe.plan.options import PLAN_VERSION, PlanOptions
from datapipe.plan.steps import Exclusion, Position, Step, steps_in, walk
from datapipe.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps of all ranks, epoch by epoch and run by run."""

    fingerprint: str  # of the dataset
    origin: Origin  # samples that take part, and their sizes
    plan: PlanOptions
    options: LoaderOptions  # of the loader, with the units of a step and the length of a run
    exclusion: Exclusion
    # Descriptions of excluded units, and `order` of the plans that they were seen in
    seen_in: Sequence[tuple[str, Mapping[str, Any]]]
    group_given: bool  # whether `plan.group` was asked for, else a state may bring another
    plan_cache: Path | None  # folder in which ranks share blocks; None for none
    _counted: dict[int, tuple[int, int]] = field(default_factory=dict)  # blocks, units by epoch

    def identity(self, plan: PlanOptions | None = None) -> dict[str, Any]:
        """Return all that the global order depends on, beside dataset and epoch."""
        return (plan or self.plan).to_dict() | {"mixture": self.origin.legs.to_dict()}

    def order(self) -> dict[str, Any]:
        """Return all that the position of a unit in an epoch depends on."""
        return {"dataset": self.fingerprint} | self.identity()

    def check(self) -> None:
        """Raise PlanError for a plan without a step, and excluded units of another plan."""
        count, options = self.origin.source.count, self.options
        if self.plan.drop_last and self.plan.unit == "sample" and count < options.share:
            raise PlanError(
                f"drop_last leaves no step: batch_size {options.units_per_rank} times world_size "
                f"{options.world_size} is more than the number of samples, {count}; give less, or "
                "leave drop_last out"
            )
        if self.plan.drop_last and self.plan.unit != "sample" and count <= self.plan.block:
            self._check_epochs()
        # A state that is loaded next may bring the group.
        self.check_exclusion(but=None if self.group_given else "group")

    def _check_epochs(self) -> None:
        """Raise PlanError for an epoch whose units, packs or batches, fill no step.

        For datasets of one block, which is planned in a moment.
        """
        run, share, steps = self.options.run, self.options.share, 0
        # Where a run of tokens ends is not known.
        epochs = 1 if run.train_tokens is not None else self.options.epochs or 1
        for epoch in range(epochs):
            units = self.count_units(epoch)
            if units < share and not self.exclusion.units.get(epoch):
                kind = "packs" if self.plan.unit == "pack" else "batches"
                raise PlanError(
                    f"drop_last leaves no step of epoch {epoch}: {self.options.units_per_rank} "
                    f"{kind} a rank times world_size {self.options.world_size} is more than its "
                    f"{units} {kind}; give a rank less, or leave drop_last out"
                )
            steps += units // share
            if run.max_steps is not None and steps >= run.max_steps:
                return
            if units > 2 * share:  # other orders do not halve the number of units
                return

    def check_exclusion(self, *, but: str | None = None) -> None:
        """Raise PlanError for excluded units of another plan; the option named `but` may differ."""
        here = {name: value for name, value in self.order().items() if name != but}
        for units, plan in self.seen_in:
            there = {name: value for name, value in plan.items() if name != but}
            if different := differences(there, here, "there"):
                raise PlanError(
                    f"exclude names {units}, seen in another plan ({'; '.join(different)}), "
                    "where they hold other samples; give the keys of its samples, or the options "
                    "of that plan, group= included, or load a state of that run"
                )

    def state(self, run: Run) -> dict[str, Any]:
        """Return the state of a run, as `dump_state` has it."""
        origin, plan, position = self.origin, self.plan, run.position
        if origin.is_alone:  # the position says all
            return dump_state(run, self.fingerprint, self.identity())
        edges = self.blocks(position.epoch).plan.edges
        place = int(edges[min(position.block, len(edges) - 1)])
        if plan.unit == "sample" and plan.group == 1:
            place += position.unit
        places = origin.places(position.epoch, place)
        datasets = {name: {"epoch": at.number, "position": at.place} for name, at in places.items()}
        return dump_state(run, self.fingerprint, self.identity(), datasets=datasets)

    def digest(self) -> str:
        """Return a digest of all that ranks must agree on."""
        options, exclusion = self.options, self.exclusion
        content: list[Any] = [self.order()]
        # Ranks that leave out other steps, or end elsewhere, would wait for each other for ever.
        content += [options.units_per_rank, exclusion.samples.tolist()]
        content += [sorted(exclusion.units.items()), options.epochs, options.run.max_steps]
        content += [options.run.train_tokens, options.accumulation_steps]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def blocks(self, epoch: int, *, ahead: bool = False) -> PlannedBlocks:
        """Return the blocks of an epoch."""
        plan = EpochPlan(self.origin.source, self.plan, epoch)
        return PlannedBlocks(plan, self._folder(), ahead=ahead)

    def steps(self, run: Run) -> Iterator[tuple[Step, Run, bool]]:
        """Yield each step of the rest of a run, the run after it, and whether that is over.

        Nothing is yielded if all that is left is excluded. `PlanError` if an epoch has no step.
        """
        while not self.is_over(run):
            epoch = run.position.epoch
            fresh = run.position == Position(epoch)
            if folder := self._folder():
                folder.forget(epoch - 2)
            for step in walk(
                self.blocks(epoch, ahead=self.options.num_workers > 0),
                run.position,
                share=self.options.share,
                drop_last=self.plan.drop_last,
                exclusion=self.exclusion,
            ):
                run = run.after(Position(epoch + 1) if step.last else step.stop, step.tokens)
                over = self.is_over(run)
                yield step, self.end(run) if over else run, over
                if over:
                    return
            if run.position.epoch == epoch:  # nothing was left of it
                if fresh and not self.exclusion.units.get(epoch):
                    raise self.no_step(epoch)
                run = replace(run, position=Position(epoch + 1))

    def no_step(self, epoch: int) -> PlanError:
        """Return the error for an epoch whose only step has too few units for all ranks."""
        return PlanError(
            f"epoch {epoch} has no step: drop_last leaves out the only one, since its units are "
            f"fewer than the {self.options.share} of a step"
        )

    def end(self, run: Run) -> Run:
        """Return the run that the state has once a run is over.

        After whole epochs it is the next run. A run of steps or tokens stays over when resumed.
        """
        epochs = self.options.epochs
        if epochs is None:
            return run
        last = run.start.epoch + epochs
        # All that is left may be excluded.
        if run.position.epoch < last and self._has_reached_limit(run):
            return run
        return Run.at(Position(last))

    def is_over(self, run: Run) -> bool:
        """Return whether a run has all its epochs, steps or tokens."""
        epochs = self.options.epochs
        all_epochs = epochs is not None and run.position.epoch - run.start.epoch >= epochs
        return all_epochs or self._has_reached_limit(run)

    def count(self, run: Run) -> int:
        """Return the steps of a run, those it has had included; EndlessError if not known."""
        options = self.options
        most = options.run.max_steps
        if options.run.train_tokens is not None:
            raise EndlessError(
                "a run of train_tokens has no known number of steps; give only "
                "RunSpec(max_steps=...) for a known number"
            )
        if options.epochs is None:
            if most is None:
                raise EndlessError(
                    "epochs=None has no end; give run=RunSpec(max_steps=...) for a length"
                )
            return most
        steps, start = 0, run.start
        last = start.epoch + options.epochs
        if not self.origin.legs.begins_run:
            steps, start = run.steps, run.position
        for epoch in range(start.epoch, last):
            consumed = start.consumed if epoch == start.epoch else 0
            steps += self._steps_of(epoch, consumed, None if most is None else most - steps)
            if most is not None and steps >= most:
                return most
        return steps

    def count_units(
        self, epoch: int, is_enough: Callable[[int], bool] = lambda units: False
    ) -> int:
        """Return the number of units of an epoch, or of as many of its blocks as are enough.

        They are planned if they are packs or batches.
        """
        blocks = self.blocks(epoch)
        if self.plan.unit == "sample":
            return int(blocks.plan.edges[-1])
        block, units = self._counted.get(epoch, (0, 0))
        if block == blocks.count or is_enough(units):
            return units
        edges = blocks.plan.edges
        with Progress("planning", unit="sample", total=self.origin.source.count) as progress:
            while block < blocks.count and not is_enough(units):
                counted = blocks.count_units(block, units)
                progress.advance(int(edges[block + 1] - edges[block]))
                block, units = block + 1, units + counted
        self._counted[epoch] = block, units
        return units

    def count_left(self, begin: Position) -> int:
        """Return the samples that this rank takes from a position to the epoch's end, once each.

        Units are samples; likewise in `position_after`.
        """
        options = self.options
        left = self.count_units(begin.epoch) - begin.consumed
        if self.plan.drop_last:
            left -= left % options.share
        return len(range(options.rank, left, options.world_size))

    def position_after(self, begin: Position, taken: int) -> Position:
        """Return the position once this rank, and so every other one, has taken some samples.

        After the last sample of this rank, it is the beginning of the next epoch.
        """
        if not taken:
            return begin
        if taken >= self.count_left(begin):
            return Position(begin.epoch + 1)
        unit = begin.consumed + taken * self.options.world_size
        position = self.blocks(begin.epoch).locate(unit)
        assert position is not None
        return position

    def _steps_of(self, epoch: int, consumed: int, enough: int | None) -> int:
        """Return the number of steps of an epoch after `consumed` units, or at least `enough`."""
        share, out = self.options.share, self.exclusion
        steps = partial(steps_in, share=share, exclusion=out, epoch=epoch, consumed=consumed)

        def is_enough(units: int) -> bool:
            # The last step of some blocks may continue in the next one.
            whole = units > consumed and steps(units, drop_last=True)
            return enough is not None and whole >= enough

        return steps(self.count_units(epoch, is_enough), drop_last=self.plan.drop_last)

    def _has_reached_limit(self, run: Run) -> bool:
        steps, tokens = self.options.run.max_steps, self.options.run.train_tokens
        return (steps is not None and run.steps >= steps) or (
            tokens is not None and run.tokens >= tokens
        )

    def _folder(self) -> BlockFolder | None:
        if self.plan_cache is None:
            return None
        # Blocks do not depend on the last step.
        identity = self.identity(replace(self.plan, drop_last=False))
        return BlockFolder(self.plan_cache, f"{PLAN_VERSION} {self.fingerprint} {identity}")
