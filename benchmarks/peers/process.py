"""Contestants as processes: each in its own environment, only one of them running at a time."""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Absent, Contestant, Run, machine, race
from benchmarks.peers.work import Task

ENVIRONMENT = Path("build/peers/env/bin/python")
_LOGS = Path("build/bench/logs")
_OURS = ("ours", "limits")  # modules that run in this environment
_PATIENCE = 900.0  # seconds for an answer; a form of the photographs may have to be written first


class Peer(NamedTuple):
    """Contestant of a race.

    Attributes:
        name: short, unique.
        module: in benchmarks.peers; has `make(task, **options)` and `PACKAGES`.
        note: what a reader must know to judge the figure.
        options: of `make`.
    """

    name: str
    module: str
    note: str = ""
    options: Mapping[str, Any] = {}

    @property
    def log(self) -> Path:
        return _LOGS / f"{self.name.replace(' ', '-').replace(':', '')}.log"


def contestant(peer: Peer, task: Task, stack: ExitStack, versions: dict[str, str]) -> Contestant:
    """Return a peer whose process `stack` ends; `versions` gains those of its packages."""

    def make() -> Callable[[], Run]:
        own = peer.module in _OURS or not ENVIRONMENT.exists()
        process = start("serve", ours=own, log=peer.log)
        stack.callback(end, process)
        order = {"module": peer.module, "options": peer.options, "task": asdict(task)}
        cores = sorted(os.sched_getaffinity(0))[: task.workers]
        reply = _ask(process, peer, order | {"cores": cores})
        if "missing" in reply:
            hint = "" if ENVIRONMENT.exists() else "; run benchmarks/peers/install.sh"
            raise Absent(reply["missing"] + hint)
        versions.update(reply["ready"])
        return lambda: Run(**_ask(process, peer, {}))

    return Contestant(peer.name, make, peer.note)


def race_peers(
    peers: Sequence[Peer],
    task: Task,
    options: argparse.Namespace,
    title: str,
    *,
    references: Sequence[str],
) -> None:
    """Race peers that do one task, with a warm page cache, and report."""
    where = machine(cache="warm")
    with ExitStack() as stack:
        entries = [contestant(peer, task, stack, where["versions"]) for peer in peers]
        race(entries, options, title, where=where, references=references, unit="img/s")


def start(
    module: str, *, ours: bool, log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a module of `benchmarks.peers` in this environment, or in that of the peers."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable if ours else ENVIRONMENT, "-m", f"benchmarks.peers.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=os.environ | (environment or {}),
            # In its own group, to be stopped or ended with its workers, but in the same session: if
            # this process dies, the kernel wakes a stopped group and hangs it up.
            process_group=0,
        )


def last_words(log: Path) -> str:
    """Return the last line of a log, and its path."""
    last = log.read_text().strip().splitlines()[-1:] or ["no message"]
    return f"{last[0][:200]}; see {log}"


def _ask(process: subprocess.Popen[str], peer: Peer, question: dict[str, Any]) -> dict[str, Any]:
    """Wake the process, let it answer, and stop it: what it prefetches must not disturb others.

    Raises:
        Absent: it died, or gave no answer in time.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    _signal(process, signal.SIGCONT)
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _PATIENCE)[0]:
            raise Absent(f"gave no answer in {_PATIENCE:.0f} s; see {peer.log}")
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise Absent(f"failed: {last_words(peer.log)}")
    _signal(process, signal.SIGSTOP)
    reply: dict[str, Any] = json.loads(line)
    return reply


def end(process: subprocess.Popen[str]) -> None:
    """Close the input of a process, which ends it with its workers and shared memory."""
    _signal(process, signal.SIGCONT)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    # After an orderly end only multiprocessing's resource tracker is left, which removes what is
    # named in shared memory and goes.
    deadline = time.monotonic() + 5
    while _signal(process, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[str], number: int) -> bool:
    """Send a signal to the process and its workers; False if there are none."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
