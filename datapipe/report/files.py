"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from datapipe.errors import DatapipeError


def write_whole(path: str | os.PathLike[str], text: str, what: str) -> None:
    """Write a file by rename, so that no reader ever opens half of one.

    The `DatapipeError` of a file that cannot be written calls it `what`, such as "report".
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
        beside.replace(path)
    except OSError as error:
        raise DatapipeError(
            f"the {what} {path} cannot be written: {error.strerror or error}; give a file in a "
            "folder that exists and may be written to"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
