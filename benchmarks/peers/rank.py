"""One rank of a machine, in a process of its own, that waits after every phase.

    python -m benchmarks.peers.rank

The first line of its input is a JSON object: `function` of a module of `benchmarks.peers`, as
"mixture.energon", and its `options`. It is also given `say`, which prints the name of a phase that
has ended, its seconds and other facts, and waits for a line. So all ranks can be looked at at the
same point.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any


class Say:
    """Report phases, and wait for an answer after each."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._since = time.perf_counter()

    def __call__(self, phase: str, **facts: Any) -> None:
        """Tell that `phase` has ended; `facts` are JSON-compatible."""
        self._tell(phase=phase, seconds=time.perf_counter() - self._since, **facts)
        if not sys.stdin.readline():
            raise SystemExit(0)  # the one who looked has gone
        self._since = time.perf_counter()


def begin() -> tuple[Callable[..., None], dict[str, Any]]:
    """Return what tells answers, apart from what libraries print, and the order that was sent."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**content: Any) -> None:
        channel.write(json.dumps(content) + "\n")
        channel.flush()

    return tell, json.loads(sys.stdin.readline())


def main() -> None:
    tell, order = begin()
    module, _, name = order["function"].partition(".")
    try:
        function = getattr(import_module(f"benchmarks.peers.{module}"), name)
        function(Say(tell), **order["options"])
    except Exception as error:
        traceback.print_exc()
        tell(phase="failed", reason=f"{type(error).__name__}: {error}"[:500])


if __name__ == "__main__":
    main()
