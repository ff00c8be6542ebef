"""A contestant in a process of its own, told over its standard input to run a round.

    python -m benchmarks.peers.serve

The first line is a JSON object: `cores`, `module`, `options` and `task`. The answer is `missing`
with a reason, or `ready` with versions. Each further line is answered with a `Run`.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module, metadata
from typing import Any

from benchmarks.common import Run
from benchmarks.peers.rank import begin


def main() -> None:
    tell, order = begin()
    # Before anything is imported that asks how many cores there are.
    os.sched_setaffinity(0, order["cores"])
    try:
        run, versions = prepare(order)
    except ImportError as error:
        tell(missing=f"not installed: {error}")
        return
    tell(ready=versions)
    for _ in sys.stdin:
        tell(**asdict(run()))


def prepare(order: dict[str, Any]) -> tuple[Callable[[], Run], dict[str, str]]:
    """Return the function that runs a round, and the versions of its packages."""
    from benchmarks.peers.work import Task

    module = import_module(f"benchmarks.peers.{order['module']}")
    run: Callable[[], Run] = module.make(Task(**order["task"]), **order["options"])
    return run, {name: metadata.version(name) for name in module.PACKAGES}


if __name__ == "__main__":
    main()
