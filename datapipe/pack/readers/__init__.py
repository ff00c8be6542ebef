"""Readers of raw formats, one module each.

A module in this folder that defines `READER` adds a format: nothing else has to be told of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from datapipe.errors import PackError
from datapipe.pack.raw import RawSample, ReadOptions, Reject, look_at


class Reader(Protocol):
    """Turns raw data of one format into samples.

    Attributes:
        name: what `--format` calls it.
        summary: one line on what it reads.
        takes: names of the `ReadOptions` that mean something to it; others are refused.
        fallback: whether it is chosen only where no other format is recognised.
    """

    name: str
    summary: str
    fallback: bool
    takes: frozenset[str]

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        """Whether `raw` looks like this format; must be quick and must not raise."""
        ...

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        """About how many inputs there are, for the progress bar; None if that costs a pass."""
        ...

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        """All inputs, always in the same order.

        Raises:
            PackError: `raw` as a whole cannot be read.
        """
        ...


def all_readers() -> dict[str, Reader]:
    """Every reader by name."""
    readers: dict[str, Reader] = {}
    for module in pkgutil.iter_modules(__path__):
        reader: Reader = importlib.import_module(f"{__name__}.{module.name}").READER
        readers[reader.name] = reader
    return readers


def choose_reader(raw: Path, name: str | None = None, options: ReadOptions | None = None) -> Reader:
    """The reader called `name`, or the one that recognises `raw`.

    Raises:
        PackError: `raw` is not there, or no format or more than one fits.
    """
    options = options or ReadOptions()
    readers = all_readers()
    known = "\n".join(f"  --format {r.name:<12} {r.summary}" for r in readers.values())
    if name is not None and name not in readers:
        raise PackError(f"format {name!r} is not known; the formats are\n{known}")
    if not raw.exists():
        raise PackError(f"{raw}: no such file or folder")
    if name is not None:
        return readers[name]
    fitting = [reader for reader in readers.values() if reader.recognises(raw, options)]
    chosen = [reader for reader in fitting if not reader.fallback] or fitting
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise PackError(
            f"{raw}: no known format is recognised (found: {look_at(raw)}); the formats are\n"
            f"{known}"
        )
    raise PackError(
        f"{raw} looks like several formats: {', '.join(reader.name for reader in chosen)} "
        f"(found: {look_at(raw)}); name one with --format"
    )
