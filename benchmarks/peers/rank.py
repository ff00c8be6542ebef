"""One rank of a machine, in a process of its own, that waits after every phase.

    python -m benchmarks.peers.rank

The first line of its input is a JSON object: `module` of `benchmarks.peers` and `options` of that
module's `run`. `run` is also given `say`, which prints the name of a phase that has ended, its
seconds and other facts, and waits for a line. So all ranks can be looked at at the same point.
"""

import json
import os
import sys
import time
import traceback
from importlib import import_module
from typing import Any, TextIO


class Say:
    """Report phases on a stream, and wait for an answer after each."""

    def __init__(self, channel: TextIO) -> None:
        self._channel = channel
        self._since = time.perf_counter()

    def __call__(self, phase: str, **facts: Any) -> None:
        """Tell that `phase` has ended; `facts` are JSON-compatible."""
        self._tell(phase, seconds=time.perf_counter() - self._since, **facts)
        if not sys.stdin.readline():
            raise SystemExit(0)  # the one who looked has gone
        self._since = time.perf_counter()

    def failed(self, error: BaseException) -> None:
        """Tell why there are no further phases."""
        self._tell("failed", reason=f"{type(error).__name__}: {error}"[:500])

    def _tell(self, phase: str, **facts: Any) -> None:
        self._channel.write(json.dumps({"phase": phase, **facts}) + "\n")
        self._channel.flush()


def begin() -> tuple[TextIO, dict[str, Any]]:
    """Return a stream for answers, apart from what libraries print, and the order that was sent."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel, json.loads(sys.stdin.readline())


def main() -> None:
    channel, order = begin()
    say = Say(channel)
    try:
        import_module(f"benchmarks.peers.{order['module']}").run(say, **order["options"])
    except Exception as error:
        traceback.print_exc()
        say.failed(error)


if __name__ == "__main__":
    main()
