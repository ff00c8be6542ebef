"""Findings about a dataset, and the report that lists them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Damage of one file, or of a sample in it.

    Examples:
        >>> print(Finding(file="0.tar", key="7", member="7.jpg", problem="is cut off"))
        0.tar: sample 7, 7.jpg: is cut off
    """

    file: str  # name relative to the dataset's folder
    problem: str  # damage, and where it says more than the report's next step, the remedy
    key: str = ""  # of the sample; "" where it is unknown, or more than one sample is affected
    member: str = ""  # name in the tar, or the file of arrays that holds an item of the sample
    # `start`, `stop`: bytes of the file; None where all of it is affected
    start: int | None = None
    stop: int | None = None
    source: str = ""  # raw input of the sample, to pack again; "" where it is unknown

    def __str__(self) -> str:
        return f"{self.file}: {self.place}{self.problem}"

    @property
    def place(self) -> str:
        """Location inside the file, to be put before the problem."""
        parts = [f"sample {self.key}"] if self.key else []
        parts += [self.member] if self.member else []
        if self.start is not None and self.stop is not None:
            parts.append(f"bytes {self.start:,} to {self.stop:,}")
        return f"{', '.join(parts)}: " if parts else ""


@dataclass(kw_only=True)
class FileFindings:
    """Result of the check of one file, or of a part of one."""

    file: str
    findings: list[Finding] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)  # numbers of samples, counted in the file
    # `members`, `bytes`: that were read and compared
    members: int = 0
    bytes: int = 0
    samples: int = 0  # that the index of a shard has
    unindexed: int = 0  # members of a foreign tar that its index leaves out
    node: str = ""  # of a cluster, that checked it

    def add(self, problem: str, **where: str | int | None) -> None:
        self.findings.append(Finding(file=self.file, problem=problem, **where))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Result of `verify_dataset`.

    Examples:
        >>> report = datapipe.verify_dataset("shards/")
        >>> report.is_whole, report.samples, report.damaged_samples
        (True, 8, 0)
    """

    dataset: str  # path or URL as it was given
    samples: int  # that the manifest says, or else the indexes that were found
    damaged_samples: int
    files: int  # shards, or files of arrays
    # `members`, `bytes`: that were read and compared
    members: int
    bytes: int
    seconds: float
    findings: tuple[Finding, ...]  # all of them, by file
    notes: tuple[str, ...]  # remarks about what is no damage

    @property
    def is_whole(self) -> bool:
        """True if nothing was found."""
        return not self.findings
