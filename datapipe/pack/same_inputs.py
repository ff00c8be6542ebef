"""Comparison of raw files with what finished shards were packed from.

The digest of inputs has the names of files and not what they hold. The index of a shard has the
size and checksum of each member, so texts that were edited, and other images under the same names,
are found without a note of their own. Texts are read again only when a pack is repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.errors import IndexMismatch, PackError, SampleError
from datapipe.index.files.crc32 import crc32
from datapipe.index.images.formats import raw_format
from datapipe.index.manifest import Shard
from datapipe.index.media import START
from datapipe.index.parquet import checked_index
from datapipe.pack.input.raw_sample import (
    Blob,
    InputCount,
    NamedTexts,
    RawImage,
    RawInput,
    RawSample,
    has_video,
)
from datapipe.pack.input.texts import read_caption, read_record
from datapipe.report.table import counted


class _Packed(NamedTuple):
    source: str = ""
    crcs: dict[str, int] = {}  # noqa: RUF012  (never changed)  by extension
    sizes: dict[str, int] = {}  # noqa: RUF012  likewise


def same_inputs(out: Path | str, inputs: InputCount, number: int, digest: str) -> None:
    """Refuse to continue from raw data that is not what the output was made from."""
    if (inputs.number, inputs.digest) != (number, digest):
        now = "others" if inputs.number == number else f"{inputs.number:,}"
        raise PackError(
            f"{out}: the raw data is not what this was packed from ({counted(number, 'input')} "
            f"then, now {now}); give a new folder, or the raw data as it was"
        )


def refuse_changed(
    out: Path,
    shards: Iterable[Shard],
    inputs: Iterable[RawInput],
    *,
    texts: bool,
    images: bool,
    strict: bool,
) -> Iterator[RawInput]:
    """Yield the inputs of finished shards, while their files are compared with the shards'.

    Inputs that were rejected are among them. Each of the `texts` is read and compared. Some
    `images` may have been converted, so only their sizes are compared, and only if all differ are
    they refused. Unless `strict`, nothing is compared with a shard whose index is damaged.

    Raises:
        PackError: a text is not what was packed or cannot be read, or no image is what was packed;
            it names the file.
        IndexMismatch: an index is damaged, if `strict`.
    """
    packed = _samples_of(out, shards, strict=strict)
    now, other, same = next(packed, _Packed()), "", False
    for sample in inputs:
        if now.source == sample.source:
            for ext, file, read in _texts_in_files(sample) if texts else ():
                if ext in now.crcs and now.crcs[ext] != _checksum(read, file):
                    raise PackError(_refusal(out, file.label))
            for file in _images_in_files(sample, now.sizes) if images and not same else ():
                if (size := _size(file)) is not None:
                    same = same or size in now.sizes.values()
                    other = other or ("" if same or _is_converted(file) else file.label)
            now = next(packed, _Packed())
        yield sample
    if other and not same:
        raise PackError(_refusal(out, f"{other}, as every other image,"))


def _refusal(out: Path, file: str) -> str:
    return (
        f"{out}: {file} is not what a finished shard was packed from: it has changed since, or is "
        "another file of the same name; restore it, or pack all of it into a new folder"
    )


def _samples_of(out: Path, shards: Iterable[Shard], *, strict: bool) -> Iterator[_Packed]:
    """Yield what the index says of each sample."""
    for shard in shards:
        try:
            table = checked_index(out, shard)
        except IndexMismatch:
            if strict:
                raise
            continue
        for batch in table.select(["source", "ext", "crc32", "size"]).to_batches(1024):
            for source, exts, *values in zip(*batch.to_pydict().values(), strict=True):
                yield _Packed(source, *(dict(zip(exts, each, strict=True)) for each in values))


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


def _images_in_files(sample: RawInput, members: Iterable[str]) -> Iterator[Blob]:
    """Yield files of images that were packed as they are, as far as their names say that."""
    kept = {ext.rpartition(".")[2] for ext in members}
    for image in sample.images if isinstance(sample, RawSample) else ():
        if isinstance(image, RawImage) and isinstance(image.blob, Blob):
            ext = image.blob.label.rpartition(".")[2].lower()
            if ext.replace("jpeg", "jpg") in kept:
                yield image.blob


def _size(file: Blob) -> int | None:
    """Return the bytes of a file; None if it is missing."""
    with suppress(OSError):
        return os.stat(file.path).st_size - file.offset if file.size is None else file.size
    return None


def _is_converted(file: Blob) -> bool:
    """Return whether a file holds an image that packing converts, whatever its name says."""
    with suppress(SampleError), file.file() as data:
        return raw_format(data.read(START)) is not None
    return True


def _checksum(read: Callable[[Blob], tuple[Any, bytes]], file: Blob) -> int:
    """Return the checksum of the member that a text becomes."""
    try:
        return crc32(read(file)[1])
    except SampleError as error:
        raise PackError(f"{file.label}: {error.reason}; it was readable when packed") from error
