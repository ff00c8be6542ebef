"""Blocks of an epoch: the next one planned ahead, shared in a folder if asked for."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from datapipe.plan.epoch import EpochPlan
from datapipe.plan.steps import Position
from datapipe.plan.units import Sizes, Units

logger = logging.getLogger(__name__)

_POLL, _LONGEST_POLL = 0.005, 0.2  # seconds: a thousand ranks that wait ask a file server 5,000/s


class BlockFolder:
    """Folder of planned blocks that ranks share, so that one of them does the work.

    The ranks of a run come to a block at the same moment. The first one claims it by a file beside
    the block's, and the others wait until the claim is removed, or its rank seems to be dead. Any
    number of processes, machines and plans may share the folder; `identity` names the plan's files.
    `patience` is the time that a rank has to plan a block, compiling the packer included.
    """

    def __init__(self, folder: Path, identity: str, *, patience: float = 10.0) -> None:  # seconds
        self._patience = patience
        self._folder = folder / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def get(self, epoch: int, block: int, before: int, plan: Callable[[], Units]) -> Units:
        """Return a block that a rank has planned, or plan it for all of them."""
        path = self._folder / f"epoch-{epoch}" / f"{block:08d}-{before}.npz"
        claim = path.with_suffix(".claim")
        end = time.monotonic() + self._patience
        while (units := _load(path)) is None:
            if _claimed(claim) or time.monotonic() > end:
                try:
                    units = _load(path)  # the rank that had claimed it may have finished since
                    if units is None:
                        units = plan()
                        _save(path, units)
                    return units
                finally:
                    try:
                        claim.unlink(missing_ok=True)
                    except OSError as error:
                        logger.debug("%s cannot be removed: %s", claim, error)
            pause = _POLL
            while claim.exists() and time.monotonic() <= end:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL)
        return units

    def forget(self, epoch: int) -> None:
        """Remove the blocks of an epoch that is over."""
        shutil.rmtree(self._folder / f"epoch-{epoch}", ignore_errors=True)  # it may be in use


class PlannedBlocks:
    """Blocks of one epoch, for one thread; with `ahead`, another plans the next one meanwhile."""

    def __init__(self, plan: EpochPlan, folder: BlockFolder | None, *, ahead: bool) -> None:
        self.plan = plan
        self.epoch = plan.epoch
        self.count = plan.blocks
        self._folder = folder
        self._ahead = ahead
        self._current: tuple[int, int, Units] | None = None
        self._next: tuple[int, int, Future[Units]] | None = None

    def __call__(self, block: int, before: int) -> Units:
        """Return a block's units, laid out for `before` units of the epoch before it."""
        if self._current is None or self._current[:2] != (block, before):
            following, self._next = self._next, None
            if following is not None and following[:2] == (block, before):
                units = following[2].result()
            else:
                units = self._planned(block, before)
            self._current = (block, before, units)
            if self._ahead and block + 1 < self.count:
                after = before + len(units)
                self._next = block + 1, after, self._plan_ahead(block + 1, after)
        return self._current[2]

    def count_units(self, block: int, before: int) -> int:
        """Return the number of units of a block; without a folder, they are not laid out."""
        return len(self.plan.form(block) if self._folder is None else self(block, before))

    def locate(self, unit: int) -> Position | None:
        """Return the position of a unit counted from the epoch's start; None if there is none."""
        if self.plan.options.unit == "sample":
            edges = self.plan.edges
            block = int(np.searchsorted(edges, unit, side="right")) - 1
            before = int(edges[block])
            return Position(self.epoch, block, unit - before, before) if unit < edges[-1] else None
        before = 0
        for block in range(self.count):
            units = self.count_units(block, before)
            if unit < before + units:
                return Position(self.epoch, block, unit - before, before)
            before += units
        return None

    def _plan_ahead(self, block: int, before: int) -> Future[Units]:
        future: Future[Units] = Future()

        def plan() -> None:
            try:
                future.set_result(self._planned(block, before))
            except BaseException as error:  # raised in the thread that iterates
                future.set_exception(error)

        # A daemon, unlike threads of a pool: a loop that ends early does not wait for it.
        threading.Thread(target=plan, name="datapipe-plan", daemon=True).start()
        return future

    def _planned(self, block: int, before: int) -> Units:
        def plan() -> Units:
            return self.plan.lay_out(self.plan.form(block), block, before)

        return plan() if self._folder is None else self._folder.get(self.epoch, block, before, plan)


def _load(path: Path) -> Units | None:
    """Return a block that was saved; None if there is none, or its file is damaged."""
    try:
        with np.load(path) as stored:  # members of a zip file have checksums, their list has none
            arrays = [stored[f"arr_{number}"] for number in range(int(stored["arrays"]))]
        samples, offsets, *sizes = arrays
        return Units(samples, offsets, Sizes(*sizes) if sizes else None)
    except FileNotFoundError:
        return None
    except Exception:  # damage shows in many ways
        logger.warning("%s is damaged; planning this block again", path)
        return None


def _save(path: Path, units: Units) -> None:
    """Keep a block for other ranks. Unwritable folders are ignored, with a warning."""
    arrays = [units.samples, units.offsets, *(units.sizes.columns if units.sizes else ())]
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, *arrays, arrays=len(arrays))
        temporary.replace(path)
    except OSError as error:
        logger.warning("a block of the plan cannot be kept for other ranks: %s", error)


def _claimed(claim: Path) -> bool:
    """Claim a block; False if another rank has done so. In unwritable folders every rank does."""
    try:
        claim.parent.mkdir(parents=True, exist_ok=True)
        claim.touch(exist_ok=False)
    except FileExistsError:
        return not claim.exists()  # a file may stand where the folder should be
    except OSError:
        pass
    return True
