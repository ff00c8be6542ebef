"""Signs of life of ranks, and the rules that tell which one is lost."""

import os
import signal
import socket
from dataclasses import dataclass
from typing import NamedTuple, Self

import psutil

SOON, SOON_AT_FIRST = 10.0, 60.0  # seconds without progress until a notice; first steps compile


@dataclass
class Place:
    """A process and its place in a run."""

    host: str
    pid: int
    machine: str  # whose processes see each other by number
    step: int = 0
    stage: str = "starting"
    count: int = 0  # stages passed so far, equal on ranks at the same place
    age: float = 0.0  # seconds since the process came there
    seconds: float = 0.0  # those of its last step
    beat: int = 0  # rises with every sign of life

    @classmethod
    def here(cls) -> Self:
        host = socket.gethostname()
        space = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""
        return cls(host, os.getpid(), f"{host} {space}")

    def where(self) -> str:
        return f"{self.stage} (step {self.step})" if self.step else self.stage


class Seen(NamedTuple):
    """A rank as another one sees it."""

    rank: int
    place: Place  # its last sign of life
    silent: float  # seconds since that came
    gone: bool  # its process is known to have ended

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.place.host}, process {self.place.pid})"

    @property
    def still(self) -> float:
        """Seconds without progress."""
        return self.place.age + self.silent


def verdict(seen: list[Seen], limit: float) -> str | None:
    """Return a sentence that names the rank that is lost; None while the run may continue.

    It gave no sign of life for `limit` seconds, or is the last if none has moved as long.
    """
    running = unfinished(seen)
    for rank in running:
        if rank.gone:
            return (
                f"{rank} is gone, last seen {rank.place.where()}; if it says nothing itself, look "
                "for the out-of-memory killer in the kernel's log"
            )
    for rank in running:
        if rank.silent > limit:
            return (
                f"{rank} has given no sign of life for {rank.silent:.0f} s, last seen "
                f"{rank.place.where()}; its process is stopped, or its host is not reachable"
            )
    if len(running) > 1 and min(rank.still for rank in running) > limit:
        return laggards(running)
    return None


def unfinished(seen: list[Seen]) -> list[Seen]:
    return [rank for rank in seen if rank.place.stage != "finished"]


def laggards(seen: list[Seen]) -> str:
    """Return a sentence on the ranks that keep the others waiting: they passed fewest stages."""
    silent = [rank for rank in seen if rank.silent > SOON]
    if silent:
        return f"{silent[0]} has given no sign of life for {silent[0].silent:.0f} s"
    least = min(rank.place.count for rank in seen)
    last = [rank for rank in seen if rank.place.count == least]
    first = last[0]
    if len(last) == len(seen):
        return (
            f"all ranks have been {first.place.where()} for {first.still:.0f} s: none is "
            "behind, so the exchange or the device hangs; look at the network, with "
            "NCCL_DEBUG=INFO for NCCL"
        )
    other = next(rank for rank in seen if rank.place.count > least)
    one = len(last) == 1
    who = f"{first} has" if one else f"{first} and {len(last) - 1} more have"
    return (
        f"{who} been {first.place.where()} for {first.still:.0f} s; the others wait for "
        f"{'it' if one else 'them'}, {other.place.where()}"
    )


def notice_after(place: Place) -> float:
    """Return seconds without progress that are more than usual."""
    if place.step < 3:
        return SOON_AT_FIRST
    return max(SOON, 5 * place.seconds)


def kill_silent(seen: list[Seen], machine: str, patience: float) -> None:
    """End the processes of a machine that are stopped, or stuck in a call.

    They handle no SIGTERM, and torchrun kills them only after half a minute.
    """
    for rank in seen:
        silent = rank.silent > patience and rank.place.stage != "finished"
        if silent and rank.place.machine == machine and exists(rank.place.pid):
            os.kill(rank.place.pid, signal.SIGKILL)


def exists(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
