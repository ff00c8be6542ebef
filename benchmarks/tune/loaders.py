"""Loaders whose best number of workers is known, whatever else the machine does."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

Make = Callable[..., Any]

_FORK = multiprocessing.get_context("fork")


class _Work(Dataset[torch.Tensor]):
    """Samples that wait, with at most so many at a time, or compute."""

    def __init__(self, *, wait: float = 0.0, slots: int | None = None, burn: float = 0.0) -> None:
        self._wait = wait
        self._burn = burn
        self._slots: AbstractContextManager[Any] = (
            nullcontext() if slots is None else _FORK.BoundedSemaphore(slots)
        )

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        with self._slots:
            time.sleep(self._wait)
            until = time.thread_time() + self._burn
            while time.thread_time() < until:
                pass
        return torch.tensor([index])


def _loader(**work: Any) -> Make:
    def make(num_workers: int, prefetch_factor: int | None) -> Any:
        return DataLoader(
            _Work(**work),
            batch_size=4,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=_FORK if num_workers else None,
        )

    return make


def known(cores: int) -> dict[str, tuple[Make, tuple[int, ...]]]:
    """Return five loaders for a machine with so many cores, and the numbers that are right."""
    return {
        # Every worker waits by itself, so the most that are tried are best.
        "waits": (_loader(wait=0.01), (8,)),
        "waits, 2 at a time": (_loader(wait=0.01, slots=2), (2,)),
        "waits, 4 at a time": (_loader(wait=0.01, slots=4), (4,)),
        # A worker hides the cost of handing over, or does not.
        "waits, 1 at a time": (_loader(wait=0.01, slots=1), (0, 1)),
        # Without a bound, more processes would get more of the cores that others use too.
        f"computes, {cores} at a time": (_loader(burn=0.003, slots=cores), (cores,)),
    }
