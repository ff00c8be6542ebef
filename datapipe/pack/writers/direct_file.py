"""File written once from front to back, past the page cache.

Shards are written once and read much later, so keeping them in the page cache costs a copy and
evicts what is being read. Where a file system has no direct writes, they go through it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import Thread
from typing import Any

logger = logging.getLogger(__name__)

_MOST_TASKS = 64  # that may wait
_BLOCK = 8 << 20
_BLOCKS = 3  # one is filled while others are written
_ALIGNED = 4096  # offsets, sizes and addresses of direct writes are multiples of this


class TaskThread:
    """Thread that runs tasks in order; after an error none is run, and the caller gets it."""

    def __init__(self, name: str) -> None:
        self._tasks: Queue[Callable[[], object] | None] = Queue(_MOST_TASKS)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[..., object], *args: Any) -> None:
        """Run `task(*args)` after all that were submitted before, or raise the error of one."""
        self.check()
        self._tasks.put(partial(task, *args))

    def drain(self) -> None:
        """Wait until all tasks are done; raise like `submit`."""
        self._tasks.join()
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread once all tasks are done or passed over."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                if self._error is None:
                    task()
            except BaseException as error:
                self._error = error
            finally:
                del task  # an idle thread must not keep the table of a shard alive
                self._tasks.task_done()


class DirectFile:
    """File whose data is collected in blocks; a thread writes the full ones."""

    def __init__(self, thread: TaskThread) -> None:
        self._thread = thread
        self._free: SimpleQueue[mmap.mmap] = SimpleQueue()
        for _ in range(_BLOCKS):
            self._free.put(_new_block())
        self._block: mmap.mmap | None = None
        self._filled = 0
        self._written = 0
        self._descriptor = -1
        self._opened: set[int] = set()  # not yet closed: tasks after a failed one are not run

    def open(self, path: Path) -> None:
        """Begin a new file at `path`; the one before must be finished."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            self._descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._descriptor = os.open(path, flags, 0o644)
            _say_buffered(path)
        self._opened.add(self._descriptor)
        self._filled = self._written = 0

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, which the caller may change afterwards."""
        view = memoryview(data)
        while view:
            if self._block is None:
                self._block = self._take()
            room = min(len(view), _BLOCK - self._filled)
            self._block[self._filled : self._filled + room] = view[:room]
            self._filled += room
            view = view[room:]
            if self._filled == _BLOCK:
                self._write_block(_BLOCK)

    def finish(self) -> None:
        """Write the rest, sync and close, in the thread."""
        size = self._written + self._filled
        if self._block is not None and self._filled:
            aligned = -(-self._filled // _ALIGNED) * _ALIGNED
            self._block[self._filled : aligned] = bytes(aligned - self._filled)
            self._write_block(aligned)
        self._thread.submit(self._sync, self._descriptor, size)
        self._descriptor = -1  # so that a write without `open` fails

    def abandon(self) -> None:
        """Close without finishing; the thread must have ended."""
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened.clear()

    def _take(self) -> mmap.mmap:
        while True:
            self._thread.check()  # a thread that failed frees no block
            try:
                return self._free.get(timeout=0.5)
            except Empty:
                continue

    def _write_block(self, size: int) -> None:
        assert self._block is not None
        self._thread.submit(self._store, self._descriptor, self._block, size, self._written)
        self._written += self._filled
        self._filled = 0
        self._block = None

    def _store(self, descriptor: int, block: mmap.mmap, size: int, offset: int) -> None:
        try:
            _write_all(descriptor, memoryview(block)[:size], offset)
        finally:
            self._free.put(block)

    def _sync(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
        self._opened.discard(descriptor)
        os.close(descriptor)


def _new_block() -> mmap.mmap:
    """Return a block that starts at a page: a huge one, which costs fewer faults, if possible."""
    block = mmap.mmap(-1, _BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # on macOS, and in kernels without huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _say_buffered(path: str | Path) -> None:
    logger.info("%s: no direct writes here; writing through the page cache", path)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        try:
            done = os.pwrite(descriptor, view, offset)
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & getattr(os, "O_DIRECT", 0):
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            _say_buffered(os.readlink(f"/proc/self/fd/{descriptor}"))
            continue
        view, offset = view[done:], offset + done
