"""Readers of raw formats.

A module in this folder that defines `READER`, or several as `READERS`, adds formats: nothing else
has to be told of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject


class Reader(Protocol):
    """Reader of raw data of one format.

    Attributes:
        name: what `--format` calls it.
        summary: one line on what it reads.
        takes: names of the `ReadOptions` that mean something to it; others are refused.
        fallback: it is chosen only if no other format is recognised.
    """

    name: str
    summary: str
    fallback: bool
    takes: frozenset[str]

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        """Return whether `raw` looks like this format; must be quick and must not raise."""
        ...

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        """Estimate the number of inputs, for the progress bar; None if that costs a pass."""
        ...

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        """Yield all inputs, always in the same order.

        Raises:
            PackError: `raw` as a whole cannot be read.
        """
        ...


def all_readers() -> dict[str, Reader]:
    """Return every reader by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found: list[Reader] = []
    for module in modules:
        found += getattr(module, "READERS", [module.READER] if hasattr(module, "READER") else [])
    return {reader.name: reader for reader in sorted(found, key=lambda reader: reader.name)}
