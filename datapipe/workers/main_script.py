"""The program's own script in a worker process.

A script is imported in a worker only if functions or classes that it defines are sent there. So a
script that does not guard its start by `if __name__ == "__main__":` can use worker processes, as
long as their work is defined in modules.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import ModuleType
from typing import NamedTuple

from datapipe.errors import WorkerError

_AS = "__mp_main__"  # the name that scripts know from multiprocessing
_is_importing = False


class MainScript(NamedTuple):
    """Script of a program: a module that `python -m` runs, or a file."""

    module: str | None
    path: str | None


def main_script() -> MainScript:
    """Return the script of this program; `WorkerError` if another process cannot import from it."""
    main = sys.modules["__main__"]
    # What the script defines comes back with that name.
    sys.modules.setdefault(_AS, main)
    if main.__spec__ is not None:
        return MainScript(main.__spec__.name, None)
    path = getattr(main, "__file__", None)
    if not path or not os.path.isfile(path):
        raise WorkerError(
            "worker processes need functions that other processes can import, but one is not "
            "defined in a file (standard input, `python -c`, a notebook, an interactive session); "
            "put it into a module, or use threads"
        )
    return MainScript(None, os.path.abspath(path))


def import_script(script: MainScript) -> None:
    """Import the script of the program that this process works for as its `__main__`."""
    global _is_importing
    _is_importing = True
    if script.module is not None:
        content = runpy.run_module(script.module, run_name=_AS, alter_sys=True)
    else:
        content = runpy.run_path(script.path or "", run_name=_AS)
    _is_importing = False
    module = ModuleType(_AS)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[_AS] = module


def refuse_unguarded_script() -> None:
    """Raise `WorkerError` if a worker is just importing the program's script."""
    if _is_importing:
        raise WorkerError(
            "the script uses worker processes when it is imported, and its functions are sent to "
            "worker processes, which import it; start its work under "
            "`if __name__ == '__main__':`, or put the functions into a module"
        )
