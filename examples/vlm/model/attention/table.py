"""Kernels by length, fastest first, as measured by `python -m benchmarks.attention --json FILE`."""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from examples.vlm.model.attention.kernels import Segments

# Settings of the benchmark by name, and what the names of kernels end with there.
_SETTINGS = {"rows of one length": "", "captions and conversations": " packed"}


class Row(NamedTuple):
    """Kernels at one length, the fastest first; of mixed lengths it is the longest."""

    packed: bool
    causal: bool
    length: int
    kernels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measured order of kernels, from the files of `source`; `device` is "cpu" or "cuda"."""

    source: str
    device: str
    dropout: bool
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, paths: list[Path]) -> Self:
        """Read one file or several of `benchmarks.attention`, such as causal and other ones."""
        contents = [_content(path) for path in paths]
        source = ", ".join(map(str, paths))
        kinds = {
            ("cpu" if c["machine"]["gpu"] == "not used" else "cuda", bool(c.get("dropout")))
            for c in contents
        }
        if len(kinds) > 1:
            raise ValueError(
                f"{source}: they differ in their device, or only one is with dropout; give tables "
                "of one kind"
            )
        device, dropout = kinds.pop()
        rows = tuple(row for content in contents for row in _rows(content))
        return cls(source=source, device=device, dropout=dropout, rows=rows)

    def __str__(self) -> str:
        return f"by length from {self.source}"

    @property
    def kernels(self) -> list[str]:
        """All kernels that ran at some length."""
        return list(dict.fromkeys(name for row in self.rows for name in row.kernels))

    def only(self, kernels: Collection[str]) -> Self:
        """Return the table without other kernels."""
        kept = (
            row._replace(kernels=tuple(name for name in row.kernels if name in kernels))
            for row in self.rows
        )
        return replace(self, rows=tuple(row for row in kept if row.kernels))

    def fastest(self, segments: Segments) -> str:
        """Return the fastest kernel at the measured length that is nearest, by ratio.

        A row of the same setting (one length or mixed, causal or not) is preferred to a nearer one.
        """

        def distance(row: Row) -> tuple[bool, bool, float]:
            length = max(1, segments.longest)
            return (
                row.packed == bool(segments.same),
                row.causal != segments.causal,
                max(row.length / length, length / row.length),
            )

        return min(self.rows, key=distance).kernels[0]


def _content(path: Path) -> Any:
    again = f"python -m benchmarks.attention --json {path}"
    try:
        content = json.loads(path.read_text())
        content["machine"]["gpu"]
        rows = _rows(content)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no table; write it: {again}") from error
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        raise ValueError(f"{path}: this is no table ({error!r}); write one: {again}") from error
    if not rows:
        raise ValueError(f"{path}: no kernel ran in it; write another: {again}")
    if content.get("rehearsal"):
        raise ValueError(f"{path}: figures of a rehearsal mean nothing; write one: {again}")
    return content


def _rows(content: Any) -> list[Row]:
    causal = bool(content.get("causal", True))  # older files were all causal
    rows = []
    for setting, ending in _SETTINGS.items():
        for at in content["settings"].get(setting, ()):
            times = {
                one["name"].removesuffix(ending): median(
                    run["seconds"] / run["samples"] for run in one["runs"]
                )
                for one in at["results"]
                if one["runs"] and one["name"].endswith(ending)
            }
            if times:
                order = tuple(sorted(times, key=lambda name: times[name]))
                rows.append(Row(bool(ending), causal, at["length"], order))
    return rows
