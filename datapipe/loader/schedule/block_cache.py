"""Blocks of an epoch: the next one formed ahead, shared in a folder if asked for."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.npy import header, map_plain
from datapipe.plan.epoch import EpochPlan
from datapipe.plan.units import Sizes, Units

logger = logging.getLogger(__name__)

_COLUMNS = len(fields(Sizes))
_HEADER = 4  # samples, units, whether sizes follow, checksum of the rest


class BlockFolder:
    """Folder of formed blocks that ranks share, so that one of them does the work.

    Args:
        folder: may be shared by any number of processes and machines, and by other plans.
        identity: of dataset, selection and options; it names the files.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def load(self, epoch: int, block: int) -> Units | None:
        """Return a block that a rank has formed; None if there is none, or its file is damaged."""
        path = self._path(epoch, block)
        try:
            flat = np.array(map_plain(path, "<i8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            flat = np.zeros(0, np.int64)
        units = _parse(flat)
        if units is None:
            logger.warning("%s is damaged; this block of the plan is formed anew", path)
        return units

    def save(self, epoch: int, block: int, units: Units) -> None:
        """Keep a block for other ranks. Unwritable folders are ignored, with a warning."""
        sizes = units.sizes
        body = np.concatenate([units.samples, units.offsets, *(sizes.columns if sizes else ())])
        head = np.array([len(units.samples), len(units), sizes is not None], np.int64)
        flat = np.concatenate([head, [_sum_of(head, body)], body]).astype(np.int64)
        path = self._path(epoch, block)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(header("<i8", len(flat)))
                file.write(flat.data)
            temporary.replace(path)
        except OSError as error:
            logger.warning("a block of the plan cannot be kept for other ranks: %s", error)

    def forget(self, epoch: int) -> None:
        """Remove the blocks of an epoch that is over."""
        folder = self._path(epoch, 0).parent
        for path in folder.glob("*.npy"):
            path.unlink(missing_ok=True)
        if folder.exists():
            try:
                folder.rmdir()
            except OSError:
                logger.debug("%s is still in use", folder)

    def _path(self, epoch: int, block: int) -> Path:
        return self._folder / f"epoch-{epoch}" / f"{block:08d}.npy"


class PlannedBlocks:
    """Blocks of one epoch; the next one is formed in a thread while one is used.

    For one thread.

    Args:
        folder: of shared blocks; None for none.
        ahead: whether the next block is formed ahead.
    """

    def __init__(self, plan: EpochPlan, folder: BlockFolder | None, *, ahead: bool) -> None:
        self.plan = plan
        self.epoch = plan.epoch
        self.count = plan.blocks
        self._folder = folder
        self._ahead = ahead
        self._current: tuple[int, int, Units] | None = None
        self._next: tuple[int, Future[Units]] | None = None

    def __call__(self, block: int, before: int) -> Units:
        """Return a block's units, laid out for `before` units of the epoch before it."""
        if self._current is None or self._current[:2] != (block, before):
            units = self.plan.lay_out(self.form(block), block, before)
            self._current = (block, before, units)
            if self._ahead and block + 1 < self.count:
                self._next = block + 1, self._form_ahead(block + 1)
        return self._current[2]

    def form(self, block: int) -> Units:
        """Return a block's units in the order they were formed."""
        following, self._next = self._next, None
        if following is not None and following[0] == block:
            return following[1].result()
        return self._form(block)

    def _form_ahead(self, block: int) -> Future[Units]:
        future: Future[Units] = Future()

        def form() -> None:
            try:
                future.set_result(self._form(block))
            except BaseException as error:  # raised in the thread that iterates
                future.set_exception(error)

        # A daemon, unlike threads of a pool: a loop that ends early does not wait for it.
        threading.Thread(target=form, name="datapipe-plan", daemon=True).start()
        return future

    def _form(self, block: int) -> Units:
        if self._folder is None:
            return self.plan.form(block)
        units = self._folder.load(self.epoch, block)
        if units is None:
            units = self.plan.form(block)
            self._folder.save(self.epoch, block, units)
        return units


def _sum_of(head: Int64, body: Int64) -> int:
    return crc32(body.data, crc32(head.data))


def _parse(flat: Int64) -> Units | None:
    """Return the block in a file; None if the file is damaged."""
    if len(flat) < _HEADER:
        return None
    samples, units, sized, checksum = (int(value) for value in flat[:_HEADER])
    body = flat[_HEADER:]
    if (
        len(body) != samples * (1 + _COLUMNS * sized) + units + 1
        or _sum_of(flat[: _HEADER - 1], body) != checksum
    ):
        return None
    edges = np.cumsum([samples, units + 1, *([samples] * _COLUMNS if sized else [])])[:-1]
    parts: list[Int64] = np.split(body, edges)
    return Units(parts[0], parts[1], Sizes(*parts[2:]) if sized else None)
