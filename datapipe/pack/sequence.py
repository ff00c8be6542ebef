"""Prepared samples put into shards in the order of the inputs, and counts of their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from datapipe.errors import SampleError
from datapipe.index.manifest import Shard
from datapipe.index.rows import Rows
from datapipe.named_counts import NamedCounts
from datapipe.pack.input.raw_sample import (
    InputCount,
    RawImage,
    RawInput,
    RawSample,
    RawVideo,
    Reject,
    sample_of,
)
from datapipe.pack.journal import Journal
from datapipe.pack.options import MaxRejects
from datapipe.pack.rejects import RejectCounts
from datapipe.pack.teaching import SampleLesson, Teaching, WrittenSample, show
from datapipe.pack.workers.prepare import Outcome, Pages
from datapipe.pack.workers.worker import PreparedParts
from datapipe.pack.writers.shards import ShardSize, ShardWriter
from datapipe.pack.writers.ustar import END

if TYPE_CHECKING:
    from datapipe.pack.ray_engine import RaySink

SHOWN = 3
"""Samples that a report writes out."""


@dataclass(kw_only=True)
class PackTally:
    """Counts of this run so far.

    `videos` are those that gave `frames`. `notes` are on images that were packed, `several` names
    those of several pages, which have `pages` together. `repeats` are samples with the image of the
    sample before them, which take `repeated_bytes` in shards; `images` are those of the last.
    """

    inputs: int = 0
    rejects: RejectCounts = field(default_factory=RejectCounts)
    seen: Counter[SampleLesson] = field(default_factory=Counter)
    shown: list[WrittenSample] = field(default_factory=list)
    map: str | None = None
    notes: NamedCounts = field(default_factory=NamedCounts)
    several: NamedCounts = field(default_factory=NamedCounts)
    pages: int = 0
    videos: int = 0
    frames: int = 0
    repeats: int = 0
    repeated_bytes: int = 0
    images: tuple[RawImage | RawVideo, ...] = ()

    def accept(self, sample: RawInput, outcome: Outcome) -> None:
        seen = outcome.seen
        self.seen[seen] += 1
        if isinstance(sample, RawSample):
            if sample.images and sample.images is self.images:  # as further captions of it are made
                self.repeats += 1
                self.repeated_bytes += outcome.bytes
            self.images = sample.images
        self.videos += len(outcome.videos)
        self.frames += sum(len(video.times) for video in outcome.videos)
        for text, file in outcome.notes:
            self.notes.add(text, file)
        for file, pages in outcome.pages:
            self.several.add("", file)
            self.pages += pages
        if len(self.shown) < SHOWN and isinstance(shown := sample_of(sample).sample, RawSample):
            with suppress(SampleError):  # a file that was removed after it was packed
                self.shown.append(show(shown, self.map, images=seen.images, videos=outcome.videos))

    def image_notes(self, pages: Pages) -> list[str]:
        """Return lines of text on images; `pages` says what becomes of several in a file."""
        taken = "each is an image of its sample, in order"
        if pages == "first":
            taken = "the first of each is taken (--pages all makes each an image of its sample)"
        form = f"{{count}} with several pages or frames, {self.pages:,} in all; {taken}: {{names}}"
        lines = self.notes.lines("{count}: {text} ({names})", "image")
        return lines + self.several.lines(form, "image")

    @property
    def teaching(self) -> Teaching:
        teaching = Teaching()
        for seen, times in self.seen.items():
            teaching.add(seen, times)
        return teaching


class ShardSink(ShardWriter):
    """Writer that notes each shard in the journal once it is in place."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal.out, journal.work, journal.number)
        self._journal = journal

    def cut(self, count: InputCount) -> None:
        checkpoint = self._journal.checkpoint(count)
        self.finish(partial(self._journal.commit, checkpoint=checkpoint))


class DryRunSink:
    """Sizes of the `shards` that would be written, which have no names."""

    def __init__(self) -> None:
        self.samples = self.images = self.bytes = 0
        self.shards: list[Shard] = []

    def write(self, data: Any, rows: Rows, start: int, stop: int, origin: int) -> None:
        """Take the data of samples, whose rows are `start` to `stop`."""
        self.images += sum(rows.images[start:stop])
        self.samples += stop - start
        self.bytes += len(data)

    def cut(self, count: InputCount) -> None:
        """End the shard."""
        size = self.bytes + len(END)
        counts = {"samples": self.samples, "images": self.images, "bytes": size}
        self.shards.append(Shard(name="", index="", index_sha256="", **counts))
        self.samples = self.images = self.bytes = 0


Sink: TypeAlias = "ShardSink | RaySink"
"""Writer of prepared samples in the order of the inputs.

`samples` and `bytes` are those of the shard that is being filled.
"""


def in_shards(
    parts: PreparedParts,
    sink: Sink | DryRunSink,
    count: InputCount,
    tally: PackTally,
    reject: Callable[[Reject], None],
    size: ShardSize,
    max_rejects: MaxRejects,
) -> PreparedParts:
    """Put parts into shards in the order of their inputs; yield each part afterwards.

    `count` may start where an earlier run stopped. `reject` takes a rejected input, and adds it to
    those of `tally`. PackError if too many inputs are rejected, or writing fails.
    """
    rejects = tally.rejects
    for inputs, part in parts:
        # Samples not yet written are from `start` to `end` and have the rows `row` to `stop`.
        start = end = row = stop = 0
        for sample, outcome, facts in zip(inputs, part.outcomes, part.facts, strict=True):
            if isinstance(outcome, Reject):
                reject(outcome)
                count.add(facts)
                rejects.check(max_rejects, count.number)
                continue
            waiting = sink.samples + stop - row
            if size.is_full(waiting, sink.bytes + end - start, outcome.bytes):
                sink.write(part.data[start:end], part.rows, row, stop, start)
                start, row = end, stop
                sink.cut(count)
            end += outcome.bytes
            stop += 1
            count.saved_bytes += outcome.saved
            count.add(facts)
            tally.accept(sample, outcome)
            if rejects.number:
                rejects.check(max_rejects, count.number)
        if stop > row:
            sink.write(part.data[start:end], part.rows, row, stop, start)
        tally.inputs += len(inputs)
        yield inputs, part
    rejects.check(max_rejects, count.number, at_end=True)
    if sink.samples:
        sink.cut(count)
