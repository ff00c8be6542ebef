"""What a golden configuration is, and the one place that makes a loader of it.

Options are those of `make_loader`, as plain dicts. `open_loader` alone hands them on: where options
are named or grouped anew, translate them there, and no digest changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import datapipe

from .data import CONVERTED, Data

Options = Mapping[str, Any]
Source = Literal[
    "shards", "arrays", "damaged", "tars", "captions", "shrunk", "served", "pairs", "videos"
]

HERE = "here"
"""Stands for a folder of the run's own in `CacheSpec(plan=...)` and `CacheSpec(disk=...)`."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """Another way to the same batches: options that differ, and where the data is."""

    name: str
    options: Options = field(default_factory=dict)
    data: Source | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration whose batches are known.

    Attributes:
        options: of `make_loader`; the image is uint8 of 16x16 pixels, the batch of 4, if not given.
        data: what is opened.
        world: ranks, all of which are read.
        stop: steps after which a run is stopped, to be continued from its state; see `goes_on`.
        goes_on: ranks that go on with it.
        same: other ways to the same batches.
        needs: a module without which the case is skipped.
    """

    options: Options
    data: Source = "shards"
    world: int = 1
    stop: int | None = None
    goes_on: int = 1
    same: tuple[Way, ...] = ()
    needs: str | None = None


def open_loader(
    data: Data, source: Source, options: Options, folder: Path, *, num_workers: int, **ranks: int
) -> datapipe.Loader:
    """Make the loader of a configuration; `folder` is for what it writes."""
    given: dict[str, Any] = {"image": CONVERTED, "num_workers": num_workers}
    given |= {"rank": 0, "world_size": 1} | ranks
    if not options.keys() & {"batch_size", "pack", "max_tokens"}:
        given["batch_size"] = 4
    given |= options
    cache = given.get("cache")
    if cache is not None and cache.disk is not None and Path(cache.disk).name == HERE:
        given["cache"] = replace(cache, disk=folder / "cache")
    if cache is not None and cache.plan is not None:
        given["cache"] = replace(cache, plan=folder / "plan")
    return datapipe.make_loader(getattr(data, source), **given)
