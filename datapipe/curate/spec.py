"""Options that all commands share which make datasets of datasets, and their report."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.declared import Word, check_fields
from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.options import parse_shard_size
from datapipe.workers.engine import EngineName, EngineSpec


@dataclass(frozen=True)
class CopySpec:
    """Options of a dataset that is made from others.

    Attributes:
        shard_size: bytes (512MB, 1GiB) or samples (10000) of a shard.
        renumber: make new keys, the ordinals of the samples. By default samples keep their keys.
        view: write an index alone, which names the shards of the source. They must stay where they
            are.
        sidecars: index files for others too, such as dali,wids,energon.
        space_check: refuse to start if the disk is too full.
        lock_check: refuse to start where OUT cannot be locked by one run.
        engine, address: engine and cluster, as in `pack_dataset`; a task writes a shard, so the
            nodes share OUT.

    Raises:
        PackError: a value is impossible, or two contradict each other.

    Examples:
        >>> output = datapipe.CopySpec(shard_size="1GB")
        >>> datapipe.select_samples("shards/", "some/", number=3, output=output).samples
        3
    """

    shard_size: Word = "512MB"
    renumber: bool = False
    view: bool = False
    sidecars: Word = ""
    space_check: bool = True
    lock_check: bool = True
    engine: EngineName = "local"
    address: Word | None = None

    def __post_init__(self) -> None:
        check_fields(self, PackError)
        parse_shard_size(self.shard_size)
        if self.view and self.engine != "local":
            raise PackError("a view only writes an index, on this machine; leave the engine out")
        EngineSpec(engine=self.engine, address=self.address)
        if self.view and self.sidecars:
            raise PackError(
                "sidecars describe shards, and a view writes none; leave out one of them"
            )


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """Report of a dataset that was made from others.

    Attributes:
        samples, images, rejected, shards, bytes: counts of the output, and the size of its tar
            files.
        seconds: this run took.
        output: the folder.
        examples: a few of the rejects.
        finished_before: True if there was nothing to do.

    Examples:
        >>> report = datapipe.select_samples("shards/", "some/", where="height > 30")
        >>> report.samples, report.output
        (6, 'some')
    """

    samples: int
    images: int
    rejected: int
    shards: int
    bytes: int
    seconds: float
    output: str
    examples: tuple[Reject, ...] = ()
    finished_before: bool = False
