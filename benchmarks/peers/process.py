"""Contestants as processes: each in its own environment, only one of them running at a time."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Absent, Contestant, Run
from benchmarks.peers.work import Task

ENVIRONMENT = Path("build/peers/env/bin/python")
_LOGS = Path("build/bench/logs")
_PATIENCE = 900.0  # seconds for an answer; a form of the photographs may have to be written first


class Peer(NamedTuple):
    """Contestant of a race.

    `function` belongs to a module of `benchmarks.peers` that lists its `PACKAGES`. It is
    given a task and `options`, and returns what runs a round. `note` says how to judge the figure.
    """

    name: str
    function: str
    note: str = ""
    options: Mapping[str, Any] = {}


def contestant(peer: Peer, task: Task, stack: ExitStack, versions: dict[str, str]) -> Contestant:
    """Return a peer whose process `stack` ends; `versions` gains those of its packages."""

    def make() -> Callable[[], Run]:
        log = _LOGS / f"{peer.name.replace(' ', '-').replace(':', '')}.log"
        ours = peer.function.startswith("ours.") or not ENVIRONMENT.exists()
        child = Child(ours=ours, log=log)
        stack.callback(child.end)
        order = {"function": peer.function, "options": peer.options, "task": asdict(task)}
        cores = sorted(os.sched_getaffinity(0))[: task.workers]
        reply = child.ask(order | {"cores": cores})
        if "missing" in reply:
            hint = "" if ENVIRONMENT.exists() else "; run benchmarks/peers/install.sh"
            raise Absent(reply["missing"] + hint)
        versions.update(reply["ready"])
        return lambda: Run(**child.ask({}))

    return Contestant(peer.name, make, peer.note)


class Child:
    """A process of `benchmarks.peers.child`, in this environment or in that of the peers.

    Lines of JSON go back and forth; `log` has what else it says.
    """

    def __init__(self, *, ours: bool, log: Path, environment: Mapping[str, str] = {}) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable if ours else ENVIRONMENT, "-m", "benchmarks.peers.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **environment},
                # In its own group, to be stopped or ended with its workers, but in the same
                # session: if this process dies, the kernel wakes a stopped group and hangs it up.
                process_group=0,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def tell(self, content: object) -> None:
        with suppress(BrokenPipeError):  # `hear` says why
            self._input.write(json.dumps(content) + "\n")
            self._input.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for an answer; `Absent` has the last words of a process that has ended."""
        line = self.output.readline()
        if not line:
            last = self.log.read_text().strip().splitlines()[-1:] or ["no message"]
            raise Absent(f"failed: {last[0][:200]}; see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, question: object) -> dict[str, Any]:
        """Wake the process, let it answer, and stop it: what it prefetches must not disturb others.

        Raises:
            Absent: it died, or gave no answer in time.
        """
        self._signal(signal.SIGCONT)
        self.tell(question)
        if not select.select([self.output], [], [], _PATIENCE)[0]:
            raise Absent(f"gave no answer in {_PATIENCE:.0f} s; see {self.log}")
        answer = self.hear()
        self._signal(signal.SIGSTOP)
        return answer

    def end(self) -> None:
        """Close the input of a process, which ends it with its workers and shared memory."""
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        # After an orderly end only multiprocessing's resource tracker is left, which removes what
        # is named in shared memory and goes.
        deadline = time.monotonic() + 5
        while self._signal(0) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> bool:
        """Send a signal to the process and its workers; False if there are none."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True
