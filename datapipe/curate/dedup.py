"""Removal of duplicates: of samples with equal images, or with images that look alike.

Equal images are found in the index. For those that look alike, every image is decoded to a
difference hash: 128 bits that say where it gets lighter to the right, and where downwards. Images
alike differ in few bits.
Source: N. Krawetz, "Kind of Like That", hackerfactor.com 2013 (dHash).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from PIL import Image

from datapipe.array_types import Int64
from datapipe.cpus import available_cpus
from datapipe.curate import sources
from datapipe.curate.copy import finished_in, report_on
from datapipe.curate.sources import Chosen
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.declared import Within, checked
from datapipe.decode.image import decode_for
from datapipe.errors import DecodeError, PackError, StoreError
from datapipe.index.dataset import Dataset
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.files.derived import read_summed, write_summed
from datapipe.index.members import member_kind
from datapipe.index.mixture import edges_of
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.journal import working_folder
from datapipe.pack.writers.shards import writing
from datapipe.progress import Progress
from datapipe.store.open import open_store
from datapipe.store.protocol import Store
from datapipe.workers.threads import ThreadPool

_BITS = 128
_GRID = 8  # differences in each direction
_DECODED = 4 * _GRID  # pixels of a side at least
_ENTRY = 1 + _BITS // 8  # bytes of a hash in a file
_SAMPLES = 16  # that a thread takes at a time

Near = Annotated[int, Within(0, 32)]


@checked(PackError)
def dedup_dataset(
    dataset: str | PathLike[str],
    out: str | PathLike[str],
    *,
    near: Near | None = None,
    text: bool = False,
    output: CopySpec = CopySpec(),  # noqa: B008  (frozen)
) -> CopyReport:
    """Copy a dataset without the samples whose images an earlier sample has.

    Images are equal if sizes and checksums (crc32) are, which the index holds. Samples with several
    images need the same in the same order. Each sample that is dropped is a line of
    `rejects.jsonl`, with the key of the one that is kept. The same command continues a copy that
    was interrupted, without decoding the shards again that it had decoded.

    Args:
        dataset: folder or URL that `datapipe pack` wrote, or folder of someone else's tars.
        out: folder for the shards; new, or that of the same command interrupted.
        near: drop images that look alike too: those whose difference hashes of 128 bits differ in
            at most this many bits. 6 finds most images that were scaled or compressed again. Every
            image is decoded.
        text: texts must be equal too, byte for byte; and samples without images are compared.
        output: options of the new shards.

    Raises:
        PackError: the output belongs to something else, or the disk is full.
        IndexMismatch: there is no finished dataset, or it changed.
        StoreError: a member cannot be read, or is damaged.

    Examples:
        >>> report = datapipe.dedup_dataset("shards/", "unique/")
        >>> report.samples, report.rejected
        (8, 0)
    """
    started = time.monotonic()
    source, folder = sources.open_source(dataset, out), sources.local_folder(out)
    asked = {"near": near, "text": text or None}
    made_by = sources.describe([source], "dedup", asked, output)
    size = {"view": True} if output.view else {"shard_size": output.shard_size}
    if (done := finished_in(folder, made_by | size, but=sources.SELECTION)) is not None:
        return report_on(done, folder, started, finished_before=True)
    found = _equal(source, text=text)
    if near is not None:
        with working_folder(folder, lock_check=output.lock_check) as work:
            hashes = _hashes(source, folder, work)
        found |= _alike(source, found, hashes, near, text=text)
    dropped = np.array(sorted(found), np.int64)
    chosen = [Chosen(dataset=source, samples=np.delete(np.arange(len(source)), dropped))]
    rejects = [*_rejects(source, dropped, found)]
    return sources.copy_chosen(chosen, out, "dedup", asked, output, rejects=rejects)


class Duplicate(NamedTuple):
    """Why a sample is dropped."""

    kept: int  # number of the sample that is kept
    reason: str  # cause, in words, with {} for the key of that sample


def _equal(source: Dataset, *, text: bool) -> dict[int, Duplicate]:
    """Return the samples that equal an earlier one, by their numbers."""
    first: dict[bytes, int] = {}
    found = {}
    reason = f"its images {'and texts ' * text}are those of sample {{}}"
    for number, (images, texts) in enumerate(_contents(source)):
        if not (images or text):
            continue
        signature = b"%d " % len(images) + images + texts if text else images
        if (kept := first.setdefault(signature, number)) != number:
            found[number] = Duplicate(kept, reason)
    return found


def _contents(source: Dataset) -> Iterator[tuple[bytes, bytes]]:
    """Yield sizes and checksums of the images of each sample, and those of its texts."""
    columns = source.columns
    kinds = [member_kind(ext) for ext in columns.extensions]
    chosen = [np.isin(kinds, of_kind) for of_kind in (["image"], ["text", "json"])]
    facts = np.dtype([("size", "<i8"), ("crc32", "<u4")])
    with Progress("comparing", unit="sample", total=len(source)) as progress:
        for start in range(0, len(source), sources.SPAN):
            stop = min(start + sources.SPAN, len(source))
            bounds = np.asarray(columns.sample_member[start : stop + 1])
            members = slice(int(bounds[0]), int(bounds[-1]))
            values = np.empty(members.stop - members.start, facts)
            values["size"] = columns.member_size[members]
            values["crc32"] = columns.member_crc32[members]
            parts = []
            for of_kind in chosen:
                is_one = of_kind[columns.member_ext[members]]
                ends = edges_of(is_one.view(np.uint8))[bounds - bounds[0]] * facts.itemsize
                data = values[is_one].tobytes()
                parts.append([data[a:b] for a, b in pairwise(ends.tolist())])
            yield from zip(*parts, strict=True)
            progress.advance(stop - start)


def _hashes(source: Dataset, out: Path, work: Path) -> list[int]:
    """Return a hash for each image, -1 for one that cannot be decoded.

    Those of each shard are kept in a file until the output is finished.
    """
    columns = source.columns
    edges, images = columns.shard_sample.tolist(), columns.sample_image
    hashes: list[int] = []
    with (
        closing(open_store(source)) as store,
        closing(ThreadPool(partial(_hash_samples, source, store), available_cpus())) as pool,
        Progress("decoding", unit="image", total=source.manifest.images) as progress,
    ):
        for shard in range(len(edges) - 1):
            first, stop = edges[shard : shard + 2]
            path = work / f"hashes-{source.fingerprint[:16]}-{shard:06d}"
            known = read_summed(path) or b""
            if len(known) != int(images[stop] - images[first]) * _ENTRY:
                known = b""
                jobs = (
                    (shard, range(start, min(start + _SAMPLES, stop)))
                    for start in range(first, stop, _SAMPLES)
                )
                for hashed in pool.run(jobs):
                    known += hashed
                    progress.advance(len(hashed) // _ENTRY)
                with writing(out):
                    write_summed(path, known)
            for at in range(0, len(known), _ENTRY):
                entry = known[at : at + _ENTRY]
                hashes.append(int.from_bytes(entry[1:], "little") if entry[0] else -1)
    return hashes


def _hash_samples(source: Dataset, store: Store, job: tuple[int, range]) -> bytes:
    """Return the hashes of the images of some samples: for each 1 and 16 bytes, or zeros."""
    shard, samples = job
    entries = []
    for number in samples:
        images = [m for m in source.columns.members(number) if member_kind(m.ext) == "image"]
        for member, data in zip(images, store.read(shard, images), strict=True):
            if not store.verify(member, data):
                key, name = source.columns.key(number), store.name(shard)
                raise StoreError(f"{name}, sample {key}, member {member.ext}: {NOT_AS_INDEXED}")
            try:
                entries.append(b"\1" + _difference_hash(data))
            except DecodeError:  # of tars that someone else wrote; like no other
                entries.append(bytes(_ENTRY))
    return b"".join(entries)


def _difference_hash(data: memoryview) -> bytes:
    pixels = decode_for(data, lambda height, width: (_DECODED, _DECODED)).pixels
    image = Image.fromarray(np.ascontiguousarray(pixels)).convert("L")
    grey = np.asarray(image.resize((_GRID + 1, _GRID + 1), Image.Resampling.BOX))
    across = grey[:-1, 1:] > grey[:-1, :-1]
    down = grey[1:, :-1] > grey[:-1, :-1]
    return np.packbits([across, down]).tobytes()


def _alike(
    source: Dataset, equal: dict[int, Duplicate], hashes: list[int], near: int, *, text: bool
) -> dict[int, Duplicate]:
    """Return further samples whose images look like those of an earlier one that is kept.

    Of `near + 1` bands of bits, two hashes that differ in at most `near` bits have one in common.
    """
    bounds = [_BITS * band // (near + 1) for band in range(near + 2)]
    bands = [(start, (1 << stop - start) - 1) for start, stop in pairwise(bounds)]
    candidates: dict[tuple[int, int, bytes], list[int]] = {}
    edges = np.asarray(source.columns.sample_image).tolist()
    found = {}
    for number, (_, texts) in enumerate(_contents(source)):
        own = hashes[edges[number] : edges[number + 1]]
        if not own or -1 in own or number in equal:
            continue
        names = [
            (n, own[0] >> start & mask, texts if text else b"")
            for n, (start, mask) in enumerate(bands)
        ]
        for other in sorted({o for name in names for o in candidates.get(name, ())}):
            others = hashes[edges[other] : edges[other + 1]]
            bits = [(a ^ b).bit_count() for a, b in zip(own, others, strict=False)]
            if len(own) == len(others) and max(bits) <= near:
                reason = f"its images look like those of sample {{}} ({max(bits)} of {_BITS} bits)"
                found[number] = Duplicate(other, reason)
                break
        else:
            for name in names:
                candidates.setdefault(name, []).append(number)
    return found


def _rejects(source: Dataset, dropped: Int64, found: dict[int, Duplicate]) -> Iterator[Reject]:
    kept = np.array([found[number].kept for number in dropped.tolist()], np.int64)
    columns = source.columns
    of_each = (columns.sources(dropped), columns.keys(dropped), columns.keys(kept))
    for number, origin, key, other in zip(dropped.tolist(), *of_each, strict=True):
        yield Reject(origin, found[number].reason.format(other), "Duplicate", key)
