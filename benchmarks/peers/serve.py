"""A contestant in a process of its own, told over its standard input to run a round.

    python -m benchmarks.peers.serve

The first line is a JSON object: `cores`, `module`, `options` and `task`. The answer is `missing`
with a reason, or `ready` with versions. Each further line is answered with a `Run`.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module, metadata
from typing import Any, TextIO

from benchmarks.common import Run
from benchmarks.peers.rank import begin


def main() -> None:
    channel, order = begin()
    # Before anything is imported that asks how many cores there are.
    os.sched_setaffinity(0, order["cores"])
    try:
        run, versions = prepare(order)
    except ImportError as error:
        answer(channel, {"missing": f"not installed: {error}"})
        return
    answer(channel, {"ready": versions})
    for _ in sys.stdin:
        answer(channel, asdict(run()))


def prepare(order: dict[str, Any]) -> tuple[Callable[[], Run], dict[str, str]]:
    """Return the function that runs a round, and the versions of its packages."""
    from benchmarks.peers.work import Task

    module = import_module(f"benchmarks.peers.{order['module']}")
    run: Callable[[], Run] = module.make(Task(**order["task"]), **order["options"])
    return run, {name: metadata.version(name) for name in module.PACKAGES}


def answer(channel: TextIO, content: dict[str, Any]) -> None:
    channel.write(json.dumps(content) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
