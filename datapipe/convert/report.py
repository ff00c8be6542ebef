"""The report of a conversion, for the caller and for the command's last lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from datapipe.pack.input.raw_sample import Reject


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """Counts and reasons of a finished conversion.

    Attributes:
        samples, images, bytes: of the arrays; `bytes` of all their files.
        rejected: samples of the shards that could not be used.
        seconds: this run took.
        reasons: how often each reason for that was met in this run.
        examples: a few of these samples.
        output: the folder.
        finished_before: whether there was nothing to do.

    Examples:
        >>> report = datapipe.convert_dataset("shards/", "arrays/")
        >>> report.samples, report.images, report.rejected
        (8, 8, 0)
    """

    samples: int
    images: int
    rejected: int
    bytes: int
    seconds: float
    output: str
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    finished_before: bool = False
