"""A process of a benchmark, which is told over its standard input what to do.

The first line is a JSON object. Its `function`, such as "mixture.energon", belongs to a
module of `benchmarks.peers`, and is given `options`.

A contestant, which has a `task` and `cores`, answers with `missing` and a reason, or `ready` and
versions; then it answers each further line with a `Run`. A rank waits for a line after every phase,
so that all ranks of a machine can be looked at at the same point.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

Tell = Callable[..., None]


class Say:
    """Report phases of a rank, and wait for a line after each."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._since = time.perf_counter()

    def __call__(self, phase: str, **facts: Any) -> None:
        """Tell that `phase` has ended, its seconds, and JSON-compatible `facts`."""
        self._tell(phase=phase, seconds=time.perf_counter() - self._since, **facts)
        if not sys.stdin.readline():
            raise SystemExit(0)  # the one who looked has gone
        self._since = time.perf_counter()


def main() -> None:
    # Answers apart from what libraries print.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**content: Any) -> None:
        channel.write(json.dumps(content) + "\n")
        channel.flush()

    order = json.loads(sys.stdin.readline())
    module, _, name = order["function"].partition(".")
    if "task" in order:
        run_rounds(tell, order, module, name)
        return
    try:
        function = getattr(import_module(f"benchmarks.peers.{module}"), name)
        function(Say(tell), **order["options"])
    except Exception as error:
        traceback.print_exc()
        tell(phase="failed", reason=f"{type(error).__name__}: {error}"[:500])


def run_rounds(tell: Tell, order: dict[str, Any], module: str, name: str) -> None:
    # Before anything is imported that asks how many cores there are.
    os.sched_setaffinity(0, order["cores"])
    try:
        from benchmarks.peers.work import Task

        found = import_module(f"benchmarks.peers.{module}")
        run = getattr(found, name)(Task(**order["task"]), **order["options"])
        versions = {package: metadata.version(package) for package in found.PACKAGES[name]}
    except ImportError as error:
        tell(missing=f"not installed: {error}")
        return
    tell(ready=versions)
    for _ in sys.stdin:
        tell(**vars(run()))


if __name__ == "__main__":
    main()
