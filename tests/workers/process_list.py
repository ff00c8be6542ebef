"""Worker processes as the system lists them."""

import os
import time
from contextlib import suppress
from pathlib import Path

from tests.waiting import PATIENCE


def worker_processes(program: int | None = None) -> set[int]:
    """Return the workers of a program, this one by default: children of its templates."""
    program = os.getpid() if program is None else program
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))):
            parents[int(entry.name)] = parent
    templates = {child for child, parent in parents.items() if parent == program}
    templates = {child for child in templates if _is_template(child)}
    return {child for child, parent in parents.items() if parent in templates}


def left(processes: set[int]) -> set[int]:
    """Return those of some processes that are still alive once they had time to end."""
    deadline = time.monotonic() + PATIENCE
    while alive := {process for process in processes if _parent(process)}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return alive


def _parent(process: int) -> int | None:
    """Return the parent of a process; None if it has ended."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(parent)


def _is_template(process: int) -> bool:
    try:
        return b"datapipe.workers.template" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def shared_memory() -> int:
    """Return the bytes that loaders of this program share with their workers."""
    found: dict[int, int] = {}  # by file: each of its maps has a descriptor, too
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if "datapipe-batches" in os.readlink(link):
                file = link.stat()
                found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())
