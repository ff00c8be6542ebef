"""Compilation of functions by numba. Importing this module imports numba, so do it late."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

# With colorama installed, numba swaps `sys.stdout` to colour messages, in a thread of ours too, and
# then restores the one it saw: output that the program redirects meanwhile would be lost.
_PLAIN = "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"
_before = os.environ.get(_PLAIN)
os.environ[_PLAIN] = "1"
import numba  # noqa: E402

if _before is None:
    del os.environ[_PLAIN]
else:
    os.environ[_PLAIN] = _before

_Function = TypeVar("_Function", bound=Callable[..., object])
_log = logging.getLogger(__name__)


def compiled(signature: Any = None) -> Callable[[_Function], _Function]:
    """Compile a function, or take it from numba's cache.

    `signature` has the types to compile for now; None compiles for those of the first call. The
    cache is beside the function's file, or where `NUMBA_CACHE_DIR` says. Without a folder that can
    be written, each process compiles for itself.
    """

    def compile(function: _Function) -> _Function:
        try:
            return cast(_Function, numba.njit(signature, cache=True, nogil=True)(function))
        except RuntimeError as error:  # numba found no folder to write to
            _log.info("%s is compiled again in each process: %s", function.__name__, error)
            return cast(_Function, numba.njit(signature, nogil=True)(function))

    return compile
