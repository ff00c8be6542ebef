"""Ctrl-C that is not lost where Python swallows exceptions."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """Remembers a Ctrl-C, which may come while `__del__` or a callback runs.

    Python reports an exception there and goes on, and a sweep would take its minutes all the same.

    Attributes:
        came: whether SIGINT raised `KeyboardInterrupt` anywhere since this was entered.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: object = None

    def check(self) -> None:
        """Raise what was swallowed.

        Raises:
            KeyboardInterrupt: Ctrl-C came.
        """
        if self.came:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; it is also the one that Ctrl-C interrupts.
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                signal.signal(signal.SIGINT, self._remember)
                self._before = before
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.check()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        assert callable(self._before)
        try:
            self._before(number, frame)
        except KeyboardInterrupt:
            self.came = True
            raise
