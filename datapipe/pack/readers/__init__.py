"""Raw formats.

A survey comes in; raw samples go out. A module in this folder that defines `READER`, or several as
`READERS`, adds formats: nothing else has to be told of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from datapipe.pack.input.raw_sample import Input, RawInput, ReadOptions, sample_of
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes

Source = TypeVar("Source")


class Reader(Protocol[Source]):
    """Reader of raw data of one format."""

    name: str  # what `--format` calls it
    summary: str  # one line on what it reads
    # Names of the `ReadOptions` that mean something to it; others are refused
    takes: frozenset[str]

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        """Return whether a survey looks like this format; must be quick and must not raise."""
        ...

    def open(self, survey: Survey, options: ReadOptions) -> Source:
        """Return the files, folders and columns that are read; PackError if they cannot be."""
        ...

    def estimate(self, source: Source, options: ReadOptions) -> int | None:
        """Estimate the number of inputs, for the progress bar; None if that costs a pass."""
        ...

    def read(self, source: Source, options: ReadOptions) -> Iterator[RawInput]:
        """Yield all inputs, always in the same order; PackError if a file cannot be read."""
        ...


@dataclass(frozen=True, kw_only=True)
class RawReading:
    """A survey as one format reads it, opened when it is first asked for."""

    survey: Survey  # of the raw data
    reader: Reader[Any]  # of the format
    options: ReadOptions  # of the reader; their notes hold what was decided when it was opened

    @cached_property
    def source(self) -> Any:
        return self.reader.open(self.survey, self.options)

    def estimate(self) -> int | None:
        """Estimate the number of inputs; None if that costs a pass."""
        return self.reader.estimate(self.source, replace(self.options, notes=Notes()))

    def inputs(self, notes: Notes, scratch: Path | None = None) -> Iterator[Input]:
        """Yield all inputs; `notes` are told what was decided, `scratch` gets temporary files."""
        found = self.raw_inputs(notes, scratch, deferred=False)
        return (sample_of(raw).sample for raw in found)

    def raw_inputs(
        self, notes: Notes, scratch: Path | None = None, *, deferred: bool = True
    ) -> Iterator[RawInput]:
        """Yield all inputs; if `deferred`, records may come as text, for the workers to read."""
        source = self.source
        notes.begin_with(self.options.notes)
        options = replace(self.options, notes=notes, scratch=scratch, deferred=deferred)
        return self.reader.read(source, options)


def all_readers() -> dict[str, Reader[Any]]:
    """Return every reader by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found: list[Reader[Any]] = []
    for module in modules:
        found += getattr(module, "READERS", [module.READER] if hasattr(module, "READER") else [])
    return {reader.name: reader for reader in sorted(found, key=lambda reader: reader.name)}


def list_formats() -> str:
    """Return what `--format` takes, with what it means, in lines."""
    return "\n".join(f"  --format {r.name:<12} {r.summary}" for r in all_readers().values())
