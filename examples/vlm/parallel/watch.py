"""Watch over the ranks: names the one that hangs, died or failed, and ends the run.

A thread of every rank writes its place to torchrun's store each second, even if the rank hangs. The
first rank compares all; the others watch the first.
"""

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from examples.vlm.parallel.places import (
    Place,
    Seen,
    exists,
    kill_silent,
    laggards,
    notice_after,
    unfinished,
    verdict,
)
from examples.vlm.parallel.ranks import Ranks

BEAT = 1.0  # seconds between two signs of life
PATIENCE = 5.0  # seconds until a rank that left the exchange is known to be gone or failed
SILENT = 3.0  # seconds without a sign of life of a rank that is lost, once the exchange broke


class Watch:
    """Signs of life of all ranks; the run ends `limit` seconds after the last, or last progress."""

    def __init__(self, ranks: Ranks, limit: float) -> None:
        self._ranks, self._limit = ranks, limit
        self._place = Place.here()
        self._name = f"rank {ranks.rank} ({self._place.host}, process {self._place.pid})"
        self._store: Any = dist.PrefixStore(
            f"watch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            dist.TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=max(BEAT, min(10.0, limit))),
            ),
        )
        self._begun = self._moved = time.monotonic()
        self._seen: dict[int, tuple[int, float]] = {}  # last sign of life, and when it came
        here = ranks.rank - int(os.environ.get("LOCAL_RANK", "0"))
        neighbours = range(here, here + int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._looked_at = range(ranks.world_size) if ranks.first else sorted({0, *neighbours})
        self._latest: list[Seen] = []
        self._told = -1  # the count of a stop that was told of
        self._terminated = self._explained = False
        self._ended = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)  # as signals need it
        if ranks.first:
            self._store.set("verdict", "")
        self._tell()
        ranks.wait()  # for the signs of all
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def mark(self, stage: str, step: int) -> None:
        """Note the stage of a step; every rank passes the same stages."""
        now = time.monotonic()
        if step != self._place.step:
            self._place.seconds, self._begun = now - self._begun, now
        self._place.step, self._place.stage = step, stage
        self._place.count += 1
        self._moved = now

    def explain(self, error: Exception) -> BaseException:
        """Report an error of this rank to the others, and return the error to raise.

        If another rank broke the exchange, it is named at once, as torchrun may end this process.
        """
        if not broke(error):
            cause = f"{type(error).__name__}: {error}"
            mine = f"{self._name} failed {self._place.where()}: {cause}"
            said = self._claim(mine)
            # An error of all ranks, such as a wrong option, is printed once.
            return SystemExit(1) if said != mine and said.endswith(cause) else error
        self._explained = True
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if text := self._lost():
                self._say(text)
                return SystemExit(1)
            time.sleep(0.1)
        return ConnectionError(
            f"{self._name} lost the exchange {self._place.where()}, and no rank is known to be "
            f"gone: {str(error).strip()}; look at the network, with NCCL_DEBUG=WARN for NCCL"
        )

    def stop(self) -> None:
        """End the thread. Another rank may still be at work."""
        self._ended.set()
        os.write(self._write, b"\0")
        # Calls of the store time out. At exit, a thread in one of them would abort the process.
        self._thread.join()
        self._place.stage = "finished"
        with suppress(RuntimeError):  # the store is gone, with the first rank
            self._tell()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Say who is gone when torchrun ends this process because another one died."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # It does nothing: the byte in the pipe wakes the thread.
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        pipe = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            signal.signal(signal.SIGTERM, before)

    def _look(self) -> None:
        try:
            while not self._ended.is_set():
                if select.select([self._read], [], [], BEAT)[0]:
                    self._terminated |= signal.SIGTERM in os.read(self._read, 64)
                if self._ended.is_set():
                    return
                if self._terminated:
                    if self._explained and self._ended.wait(PATIENCE + BEAT):
                        return  # the main thread has said it
                    self._end(self._lost() or "", 128 + signal.SIGTERM)
                self._tell()
                self._judge()
        except RuntimeError:  # of the store, which lives in torchrun or in the first rank
            if not self._ended.wait(PATIENCE):
                self._end("the store of torchrun or of rank 0 is gone; that process ended", 1)

    def _tell(self) -> None:
        self._place.beat += 1
        self._place.age = time.monotonic() - self._moved
        self._store.set(f"rank/{self._ranks.rank}", json.dumps(vars(self._place)))

    def _judge(self) -> None:
        """Judge all ranks, or the first one alone, and end the run where one is lost."""
        self._latest = seen = self._others(self._looked_at)
        found = verdict(seen if self._ranks.first else seen[:1], self._limit)
        if found is not None:
            self._claim(found)
        elif self._ranks.first:
            self._notice(seen)
        text = self._store.get("verdict").decode()
        # A rank whose exchange broke ends by itself, and says the same.
        if text and not self._ended.wait(PATIENCE if " failed " in text else 0):
            self._end(text, 1)

    def _notice(self, seen: list[Seen]) -> None:
        """Say once who keeps the others waiting, long before the run ends."""
        seen = unfinished(seen)  # the others may have nothing left to do
        least, here = min(rank.still for rank in seen), self._place
        if len(seen) > 1 and least > notice_after(here) and here.count != self._told:
            self._told = here.count
            say(f"{laggards(seen)}; the run ends after {self._limit:.0f} s")

    def _others(self, which: Any) -> list[Seen]:
        texts = self._store.multi_get([f"rank/{rank}" for rank in which])
        now, found = time.monotonic(), []
        for rank, text in zip(which, texts, strict=True):
            place = Place(**json.loads(text))
            beat, when = self._seen.get(rank, (-1, now))
            if beat != place.beat:
                when = now
                self._seen[rank] = (place.beat, now)
            gone = place.machine == self._place.machine and not exists(place.pid)
            found.append(Seen(rank, place, silent=now - when, gone=gone))
        return found

    def _lost(self) -> str | None:
        """Return which rank failed or is gone, if one did."""
        with suppress(RuntimeError):
            if text := self._store.get("verdict").decode():
                return str(text)
            return verdict(self._others(range(self._ranks.world_size)), SILENT)
        return "rank 0 or torchrun, which kept the store, is gone"

    def _claim(self, text: str) -> str:
        """Make this the verdict, unless there is one; returns the verdict."""
        with suppress(RuntimeError):
            return str(self._store.compare_set("verdict", "", text).decode())
        return text

    def _say(self, text: str) -> None:
        """Print a verdict on one rank: the first, or the next one where the first is lost."""
        speaker = 1 if text.startswith("rank 0 ") else 0
        if self._ranks.rank == speaker:
            say(f"train: {text}")

    def _end(self, text: str, status: int) -> None:
        """End this process from the thread, since the main one may hang in an exchange."""
        named = text.startswith((f"rank {self._ranks.rank} ", "all ranks"))
        if text and not self._explained:
            self._say(text)
        if named and " failed " not in text and self._ranks.rank < 4:
            say(f"rank {self._ranks.rank} is here:\n{stacks()}")
        else:
            time.sleep(BEAT)  # torchrun ends the others with the first; let the named one speak
        kill_silent(self._latest, self._place.machine, SILENT)
        os._exit(status)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def watched(ranks: Ranks, limit: float) -> Iterator[Watch | None]:
    """Watch over the ranks while a run lasts; None for one process."""
    if ranks.world_size == 1:
        yield None
        return
    watch = Watch(ranks, limit)
    with watch.hearing():
        try:
            yield watch
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun sends it too
            raise
        except Exception as error:
            found = watch.explain(error)
            if found is error:
                raise
            raise found from error
        finally:
            watch.stop()


def stacks() -> str:
    """Return the stack of each thread but this one, the main one last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, here = threading.main_thread().ident, threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] == main)
    return "\n".join(
        f"thread {names.get(ident, '?')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if ident != here
    )


def broke(error: Exception) -> bool:
    """Return whether an error is one of the exchange between ranks, not of this rank."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL"))
    )
