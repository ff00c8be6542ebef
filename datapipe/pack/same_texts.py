"""Comparison of the texts of an interrupted pack with those in its finished shards.

The digest of inputs has the names of files and not what they hold. The index of a shard has the
checksum of each member, so texts that were edited meanwhile are found without a note of their own.
They are read again only when a pack is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from datapipe.errors import PackError, SampleError
from datapipe.index.files.crc32 import crc32
from datapipe.index.manifest import Shard
from datapipe.index.parquet import checked_index
from datapipe.pack.input.raw_sample import Blob, NamedTexts, RawInput, RawSample, has_video
from datapipe.pack.workers.texts import read_caption, read_record


def refuse_changed_texts(
    out: Path, shards: Iterable[Shard], inputs: Iterable[RawInput]
) -> Iterator[RawInput]:
    """Yield the inputs of finished shards, while their texts are compared with the shards'.

    Inputs that were rejected are among them.

    Raises:
        PackError: a text is not what was packed; it names the file.
        IndexMismatch: an index is damaged.
    """
    packed = _samples_of(out, shards)
    source, crcs = next(packed, ("", {}))
    for sample in inputs:
        if source == sample.source:
            for ext, file, read in _texts_in_files(sample):
                if ext in crcs and crcs[ext] != _checksum(read, file):
                    raise PackError(
                        f"{out}: {file.label} is not what a finished shard was packed from: its "
                        "text has changed since the pack was interrupted; restore it, or pack into "
                        "a new folder"
                    )
            source, crcs = next(packed, ("", {}))
        yield sample


def _samples_of(out: Path, shards: Iterable[Shard]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield sources of samples, and the checksums of their members by extension."""
    for shard in shards:
        table = checked_index(out, shard)
        for batch in table.select(["source", "ext", "crc32"]).to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                yield row["source"], dict(zip(row["ext"], row["crc32"], strict=True))


def _texts_in_files(
    sample: RawInput,
) -> Iterator[tuple[str, Blob, Callable[[Blob], tuple[Any, bytes]]]]:
    """Yield files that were packed as texts, with their extension and what reads them."""
    # Named texts may have been taken up by the record.
    if isinstance(sample, RawSample) and not isinstance(sample.caption, NamedTexts):
        if isinstance(sample.caption, Blob):
            yield "txt", sample.caption, read_caption
        if isinstance(sample.record, Blob) and not has_video(sample):  # which adds times to it
            yield "json", sample.record, read_record


def _checksum(read: Callable[[Blob], tuple[Any, bytes]], file: Blob) -> int | None:
    """Return the checksum of the member that a text becomes; None if it cannot be read."""
    try:
        return crc32(read(file)[1])
    except SampleError:
        return None
