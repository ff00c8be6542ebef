"""Functions of the user that a command is told by name: `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datapipe.errors import PlanError


def resolve_target(name: str, option: str) -> Callable[..., Any]:
    """What `module:function` or `file.py:function` names, as seen from the current folder.

    Args:
        name: as given.
        option: that it was given for, such as "--target".

    Raises:
        PlanError: there is no such module or function, or importing it fails.
    """
    module, colon, path = name.rpartition(":")
    if not (colon and module and path):
        raise PlanError(f"{option} {name!r}: give module:function, such as train:make_loader")
    found: Any = _module(module, f"{option} {name!r}")
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise PlanError(f"{option} {name!r}: {module} has no {path!r}")
        found = getattr(found, attribute)
    if not callable(found):
        raise PlanError(f"{option} {name!r}: this is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _module(name: str, asked: str) -> Any:
    file = Path(name)
    folder = Path.cwd()
    if file.suffix == ".py":
        if not file.is_file():
            raise PlanError(f"{asked}: no file {file}")
        # By its name, so that worker processes import it too.
        folder, name = file.resolve().parent, file.stem
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            where = "from the current folder" if file.suffix != ".py" else f"from {folder}"
            raise PlanError(f"{asked}: there is no module {name!r} {where}") from None
        raise PlanError(f"{asked}: importing {name} fails: {error}") from error
    except Exception as error:
        kind = type(error).__name__
        raise PlanError(f"{asked}: importing {name} raises {kind}: {error}") from error
