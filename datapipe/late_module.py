"""Modules that take long to import, such as compiled kernels: imported once that pays."""

from __future__ import annotations

import importlib
import itertools
import os
import threading
from types import ModuleType


class LateModule:
    """Module that is imported in the background once there was enough work for it.

    Until `after` units of work were counted and the import has ended, `module` is None, and the
    caller does the work without it.

    Examples:
        >>> late = LateModule("datapipe.plan.rng", after=3)
        >>> late.count(2)
        >>> late.module is None
        True
        >>> late.load().__name__
        'datapipe.plan.rng'
    """

    def __init__(self, name: str, *, after: int) -> None:
        self.module: ModuleType | None = None
        self.name = name
        self.after = after
        self._done = 0  # threads may overwrite each other's
        # Atomic without a lock, which a fork could leave locked.
        self._asked = itertools.count()
        self._thread: threading.Thread | None = None
        os.register_at_fork(before=self.wait)

    def count(self, amount: int) -> None:
        """Count work that was done without the module; the last of `after` starts the import."""
        self._done += amount
        if self._done < self.after or next(self._asked):
            return
        # Not a daemon: the interpreter must not go away under a running compiler.
        thread = threading.Thread(target=self.load, name="datapipe-kernel", daemon=False)
        thread.start()
        self._thread = thread

    def load_soon(self) -> None:
        """Start the import now, for work that has little to do beside it."""
        self.count(self.after)

    def load(self) -> ModuleType:
        """Import the module now, for measurements that should not begin without it."""
        self.module = module = importlib.import_module(self.name)
        return module

    def wait(self) -> None:
        """Wait for the end of the import: a fork meanwhile would leave its locks locked."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
