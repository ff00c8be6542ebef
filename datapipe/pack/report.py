"""Report of a pack, for the caller and for the command's last lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.teaching import Teaching, WrittenSample


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """Report of a pack.

    Attributes:
        samples, images, rejected, shards, bytes: of the whole output; `bytes` of its tar files.
        saved_bytes: by which shrinking made the images of the whole output smaller.
        seconds: this run took.
        inputs: seen in this run.
        reasons: how often each reason for a reject was met in this run.
        examples: a few of the rejects of this run.
        notes: lines on what was decided and left out in this run, for people.
        left_out: files beside the data that are no data, such as a README.
        captions_unused: captions that no sample has, under `captions="first"`.
        videos, frames: videos of this run, and the frames that were taken of them.
        teaching: what the samples of this run teach a model, in numbers.
        shown: the first samples of this run, as training will see them.
        output: the folder or URL; "" of a dry run without one.
        lost: inputs that a cluster could not prepare or read in this run; they are rejects.
        finished_before: whether there was nothing to do.
        dry_run: whether nothing was written.

    Examples:
        >>> report = datapipe.pack_dataset("photos/", dry_run=True)
        >>> report.samples, report.rejected, report.dry_run
        (8, 0, True)
    """

    samples: int
    images: int
    rejected: int
    shards: int
    bytes: int
    seconds: float
    output: str
    saved_bytes: int = 0
    inputs: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: int = 0
    captions_unused: int = 0
    videos: int = 0
    frames: int = 0
    teaching: Teaching = field(default_factory=Teaching)
    shown: tuple[WrittenSample, ...] = ()
    lost: int = 0
    finished_before: bool = False
    dry_run: bool = False
