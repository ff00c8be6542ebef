"""Parts of a loader, for measurements that run them by themselves.

No function here moves the loader: the steps are those of its next run, and its state stays.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import KERNEL
from datapipe.errors import DecodeError, MissingMember
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.members import SampleParts, wanted_members
from datapipe.index.rows import Member
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.user_transform import apply_transform
from datapipe.loader.loader import Loader
from datapipe.plan.ragged import spans
from datapipe.remote.folder import RemoteFolder
from datapipe.text.encode import SampleText
from datapipe.text.sample_text import sample_text

_FROM_STORAGE = 0.5  # of the bytes asked for, that storage must have delivered to count as cold

Members = Sequence[tuple[int, Sequence[Member]]]
"""Shard and members of each of some samples."""


@dataclass(frozen=True, kw_only=True)
class StepShare:
    """Step of a rank, and the images that its batch has."""

    step: StepJob
    images: Int64  # int64 [n], images of each sample that the batch has

    @property
    def samples(self) -> Int64:
        """Numbers of its samples, int64 [n]."""
        return self.step.samples

    def job(self, context: BatchContext) -> BatchBuilder:
        """Return a builder of the batch that has built nothing yet."""
        return BatchBuilder(context, self.step)


@dataclass(frozen=True, kw_only=True)
class ReadSample:
    """A sample as it was read: images as they are encoded."""

    # number, key: of the sample
    number: int
    key: str
    text: SampleText  # input of the tokenizer
    record: Any  # its JSON member; None if it has none
    caption: str  # its text in batches without a tokenizer
    images: Sequence[memoryview]  # encoded

    @property
    def encoded(self) -> int:
        """Bytes of its images."""
        return sum(len(image) for image in self.images)


def have_kernel() -> None:
    """Load the kernel that normalises images, as a run of some thousand images does.

    In a thread, which an interrupt of this one leaves alone: a kernel that is half loaded may abort
    the process when the interpreter ends.
    """
    thread = threading.Thread(target=KERNEL.load, name="datapipe-kernel", daemon=False)
    thread.start()
    thread.join()


def threaded_stage(context: BatchContext) -> str | None:
    """Name the stage whose library has threads of its own; None if there is none."""
    if context.images is not None and context.images.decoder is not None:
        return "decode"
    return "tokenize" if context.images is None and context.tokens is not None else None


def steps_of(loader: Loader) -> Iterator[StepShare]:
    """Iterate over the steps of the loader's next run, in the order of its plan."""
    options, columns = loader.options, loader.dataset.columns
    parts = loader.components()
    for step, after, over in parts.schedule.steps(parts.start):
        share = step.share(
            units_per_rank=options.units_per_rank, rank=options.rank, world_size=options.world_size
        )
        sizes = share.units.sizes
        _, counted = spans(columns.sample_image, share.units.numbers)
        yield StepShare(
            step=StepJob(
                share=share,
                epoch=step.start.epoch,
                run_after=after,
                keys=parts.schedule.origin.random_keys(share.units),
                labels=step.labels,
                last=over,
            ),
            images=counted if sizes is None else sizes.images,
        )


def members_of(context: BatchContext, sample: int, images: int) -> list[Member]:
    """Return the members of a sample that its batch needs, `images` images among them."""
    count = 0 if context.images is None else images
    return wanted_members(context.dataset.columns.members(sample), count)


def read_sample(
    context: BatchContext, sample: int, images: int, members: Sequence[Member]
) -> ReadSample:
    """Read, verify and parse a sample, as a worker does.

    Raises:
        SampleError: a member is damaged, or an image is missing.
        StoreError: the shard cannot be read.
    """
    columns = context.dataset.columns
    contents = context.store.read(columns.shard(sample), members)
    parts = SampleParts()
    for member, data in zip(members, contents, strict=True):
        if context.verify and not context.store.verify(member, data):
            raise DecodeError(NOT_AS_INDEXED)
        parts.add(member, data)
    if context.images is not None and len(parts.images) != images:
        raise MissingMember(f"{len(parts.images)} images found, the index says {images}")
    total = int(columns.sample_image[sample + 1] - columns.sample_image[sample])
    return ReadSample(
        number=sample,
        key=columns.key(sample),
        text=SampleText(parts.caption, parts.record, total),
        record=parts.record,
        caption=sample_text(parts.caption, parts.record),
        images=[data for _, data in parts.images],
    )


def transform_sample(
    context: BatchContext, sample: ReadSample, images: list[Decoded], epoch: int
) -> list[Decoded]:
    """Call the user's transform with the decoded images of a sample.

    Raises:
        SampleError: the transform failed.
    """
    assert context.transform is not None
    transformed, _ = apply_transform(
        context.transform,
        images,
        text=sample.caption,
        key=sample.key,
        record=sample.record,
        seed=context.seed,
        epoch=epoch,
        sample=sample.number,
    )
    return transformed


def tensor_bytes(batch: dict[str, Any]) -> int:
    """Count the bytes of a batch's tensors."""
    return sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))


# Reads from storage in place of the page cache.


def evict(context: BatchContext, members: Members) -> bool:
    """Ask the system to drop the pages of some samples from the page cache.

    Returns:
        False if it cannot be asked, or the shards are not local files.
    """
    folder = context.dataset.folder
    if not hasattr(os, "posix_fadvise") or isinstance(folder, RemoteFolder):
        return False
    try:
        for shard, group in itertools.groupby(sorted(members, key=_shard), key=_shard):
            path = folder / context.store.name(shard)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for member in itertools.chain.from_iterable(members for _, members in group):
                    os.posix_fadvise(descriptor, member.offset, member.size, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    except OSError:
        return False
    return True


def _shard(entry: tuple[int, Sequence[Member]]) -> int:
    return entry[0]


def delivered() -> int | None:
    """Return the bytes that storage delivered to this process so far; None if unknown."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    counts = dict(line.split(": ") for line in lines)
    return int(counts["read_bytes"]) if "read_bytes" in counts else None


def was_cold(before: int | None, asked: int) -> bool:
    """Check that most of `asked` bytes came from storage since `delivered` returned `before`."""
    now = delivered()
    if before is None or now is None or not asked:
        return False
    return now - before >= _FROM_STORAGE * asked
