"""Ctrl-C as the caller sees it: raised by the call that it interrupted, without our own frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def short_interrupts(function: Callable[P, R]) -> Callable[P, R]:
    """Let a `KeyboardInterrupt` inside a function begin at the function itself.

    The frames below wait for workers, and say nothing about the caller's code. A second Ctrl-C
    while workers are stopped is not chained to the first.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise error.with_traceback(None) from None

    return call
