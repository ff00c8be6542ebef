"""One pack: a reader, workers that check, and one sequencer that commits in input order."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path

from datapipe.cpus import available_cpus
from datapipe.errors import PackError
from datapipe.index.columns import open_columns
from datapipe.index.dataset import check_shards
from datapipe.index.manifest import Manifest, write_manifest
from datapipe.pack.journal import (
    Journal,
    finished,
    refuse_foreign,
    remove_leftovers,
    remove_working_folder,
    same_inputs,
    working_folder,
)
from datapipe.pack.options import (
    MaxRejects,
    PackOptions,
    parse_max_rejects,
    parse_shard_size,
)
from datapipe.pack.prepare import Check, Prepared, prepare
from datapipe.pack.raw import InputCount, RawSample, ReadOptions, Reject
from datapipe.pack.readers import Reader, choose_reader
from datapipe.pack.ustar import END
from datapipe.pack.writers.shards import ShardSize, ShardWriter
from datapipe.progress import Progress

# Inputs a worker takes at once. Small, so that a slow image holds little up; fixed, so that
# nothing depends on the number of workers.
_CHUNK = 32
_CHUNKS_AHEAD = 4  # per worker

Input = RawSample | Reject


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """What a pack did.

    Attributes:
        samples, images, rejected, shards, bytes: of the whole output; `bytes` of its tar files.
        seconds: this run took.
        inputs: seen in this run.
        reasons: how often each reason for a reject was met in this run.
        examples: a few of the rejects of this run.
        output: the folder.
        finished_before: whether there was nothing to do.
        dry_run: whether nothing was written.
    """

    samples: int
    images: int
    rejected: int
    shards: int
    bytes: int
    seconds: float
    output: str
    inputs: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    finished_before: bool = False
    dry_run: bool = False


def pack_dataset(
    raw: str | PathLike[str],
    out: str | PathLike[str],
    *,
    format: str | None = None,
    image_root: str | PathLike[str] | None = None,
    workers: int | None = None,
    shard_size: str | int = "512MB",
    check: Check = "decode",
    max_rejects: str | int = "5%",
    limit: int | None = None,
    dry_run: bool = False,
) -> PackReport:
    """Pack raw image-text data into WebDataset shards with index and manifest.

    The same command continues a pack that was interrupted. Equal input and options give equal
    bytes, whatever `workers` is.

    Args:
        raw: file or folder of raw data.
        out: folder for the shards; new, or that of the same pack interrupted.
        format: name of the reader; recognised where None.
        image_root: where relative image paths of annotation files start.
        workers: threads that read and check; one per available CPU where None.
        shard_size: bytes such as "512MB", or a number of samples.
        check: "decode" decodes every image fully once, "header" reads its header alone.
        max_rejects: a number, or a share such as "5%" judged after 1,000 inputs and at the end.
        limit: take no more inputs than these.
        dry_run: read and check, but write nothing.

    Raises:
        PackError: the input is not recognised, the output belongs to something else, too many
            inputs were rejected, or the disk is full.
    """
    raw, out = Path(raw), Path(out)
    read_options = ReadOptions(image_root=Path(image_root) if image_root else None)
    reader = choose_reader(raw, format, read_options)
    limit_rejects = parse_max_rejects(str(max_rejects))
    size = parse_shard_size(str(shard_size))
    if workers is not None and workers < 1:
        raise PackError(f"--workers {workers}: at least 1 is needed")
    if limit is not None and limit < 1:
        raise PackError(f"--limit {limit}: at least 1 is needed")
    if check not in ("decode", "header"):
        raise PackError(f"--check {check!r} is neither 'decode' nor 'header'")
    for name in _given(read_options):
        if name not in reader.takes:
            option = f"--{name.replace('_', '-')}"
            raise PackError(f"{option} means nothing to the format {reader.name}; leave it out")
    if raw.is_dir() and out.resolve().is_relative_to(raw.resolve()):
        raise PackError(f"{out} lies inside the raw data {raw}; give a folder outside of it")
    if out.exists() and not out.is_dir():
        raise PackError(f"{out} is a file; give a folder")
    options = PackOptions(format=reader.name, shard_size=str(shard_size), check=check, limit=limit)
    inputs = itertools.islice(reader.read(raw, read_options), limit)
    job = _Job(
        out=out,
        reader=reader,
        inputs=inputs,
        expected=_expected(reader, raw, read_options, limit),
        workers=workers or available_cpus(),
        check=check,
        max_rejects=limit_rejects,
    )
    started = time.monotonic()
    if before := finished(out, options.to_dict()):
        check_shards(out, before)
        same_inputs(out, job.count_all(), before.inputs, before.inputs_sha256)
        remove_working_folder(out)
        return _report(before, out, started, finished_before=True)
    if dry_run:
        refuse_foreign(out)
        return job.rehearse(started, size)
    with working_folder(out) as work:
        journal = Journal(out, options.to_dict())
        writer = ShardWriter(out, work, size, first=len(journal.shards))
        try:
            job.run(journal, writer)
            journal.publish_rejects()
        finally:
            writer.abandon()
            journal.close()
        manifest = Manifest(
            shards=tuple(journal.shards),
            rejected=journal.rejected,
            inputs=job.count.number,
            inputs_sha256=job.count.digest,
            options=options.to_dict(),
        )
        remove_leftovers(out)
        open_columns(out, manifest)
        write_manifest(out, manifest)
        remove_working_folder(out)
    return _report(
        manifest,
        out,
        started,
        inputs=job.seen,
        reasons=dict(job.reasons.most_common()),
        examples=tuple(job.examples),
    )


def _expected(reader: Reader, raw: Path, options: ReadOptions, limit: int | None) -> int | None:
    total = reader.estimate(raw, options)
    return min(total, limit) if total and limit else total or limit


def _given(options: ReadOptions) -> list[str]:
    """Names of the options that a user gave."""
    return [name for name, value in asdict(options).items() if value is not None]


def _report(manifest: Manifest, out: Path, started: float, **more: object) -> PackReport:
    return PackReport(
        samples=manifest.samples,
        images=manifest.images,
        rejected=manifest.rejected,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        seconds=round(time.monotonic() - started, 3),
        output=str(out),
        **more,  # type: ignore[arg-type]
    )


@dataclass(kw_only=True)
class _Job:
    """The moving part of a pack."""

    out: Path
    reader: Reader
    inputs: Iterator[Input]
    expected: int | None
    workers: int
    check: Check
    max_rejects: MaxRejects
    count: InputCount = field(default_factory=InputCount)
    seen: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[Reject] = field(default_factory=list)

    def run(self, journal: Journal, writer: ShardWriter) -> None:
        """Write what is still to be written, committing shard by shard."""
        self._skip_done(journal)
        for taken, prepared in self._checked(first=self.count.number):
            if isinstance(prepared, Reject):
                journal.reject(prepared)
            elif closed := writer.write(prepared):
                journal.commit(closed, self.count)
            self.count.add(taken)
            self._judge(journal.rejected, self.count.number, at_end=False)
        self._judge(journal.rejected, self.count.number, at_end=True)
        closed = writer.finish()
        if closed:
            journal.commit(closed, self.count)
        if not journal.shards:
            raise PackError(
                f"no sample was found among {self.count.number:,} inputs"
                + (f", the first reject: {self.examples[0].reason}" if self.examples else "")
            )

    def rehearse(self, started: float, limit: ShardSize) -> PackReport:
        """Read and check everything, write nothing."""
        samples = images = rejected = size = shards = in_shard = filled = 0
        for _, prepared in self._checked(first=0):
            if isinstance(prepared, Reject):
                rejected += 1
                self._judge(rejected, samples + rejected, at_end=False)
            else:
                samples += 1
                images += len(prepared.row.images)
                if not in_shard or limit.is_full(in_shard, filled, prepared.bytes):
                    size += len(END)
                    shards, in_shard, filled = shards + 1, 0, 0
                in_shard, filled = in_shard + 1, filled + prepared.bytes
                size += prepared.bytes
        self._judge(rejected, samples + rejected, at_end=True)
        return PackReport(
            samples=samples,
            images=images,
            rejected=rejected,
            shards=shards,
            bytes=size,
            seconds=round(time.monotonic() - started, 3),
            output=str(self.out),
            inputs=self.seen,
            reasons=dict(self.reasons.most_common()),
            examples=tuple(self.examples),
            dry_run=True,
        )

    def _skip_done(self, journal: Journal) -> None:
        for taken in itertools.islice(self.inputs, journal.inputs):
            self.count.add(taken)
        if journal.inputs:
            same_inputs(self.out, self.count, journal.inputs, journal.digest)

    def count_all(self) -> InputCount:
        """Look at every input without reading what it names."""
        with Progress("comparing", unit="input", total=self.expected) as progress:
            for taken in self.inputs:
                self.count.add(taken)
                progress.advance()
        return self.count

    def _checked(self, first: int) -> Iterator[tuple[Input, Prepared | Reject]]:
        """Inputs with what became of them, in input order, from the workers' threads."""
        window: deque[tuple[list[Input], Future[list[Prepared | Reject]]]] = deque()
        ordinals = itertools.count(first, _CHUNK)
        expected = max(self.expected - first, 0) if self.expected else None
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="datapipe-pack")
        try:
            with Progress("packing", unit="sample", total=expected) as progress:
                while True:
                    while len(window) < self.workers * _CHUNKS_AHEAD:
                        chunk = list(itertools.islice(self.inputs, _CHUNK))
                        if not chunk:
                            break
                        window.append((chunk, pool.submit(self._prepare, chunk, next(ordinals))))
                    if not window:
                        return
                    chunk, future = window.popleft()
                    for taken, prepared in zip(chunk, future.result(), strict=True):
                        self.seen += 1
                        if isinstance(prepared, Reject):
                            self._count(prepared)
                        yield taken, prepared
                    rejected = sum(self.reasons.values())
                    progress.advance(len(chunk), note=f"{rejected:,} rejected" if rejected else "")
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, chunk: list[Input], ordinal: int) -> list[Prepared | Reject]:
        return [prepare(taken, ordinal + i, self.check) for i, taken in enumerate(chunk)]

    def _count(self, reject: Reject) -> None:
        self.reasons[f"{reject.error}: {reject.reason}"] += 1
        if len(self.examples) < 10:
            self.examples.append(reject)

    def _judge(self, rejected: int, inputs: int, *, at_end: bool) -> None:
        if not self.max_rejects.exceeded(rejected, inputs, at_end=at_end):
            return
        examples = "".join(
            f"\n  {reject.source}: {reject.file + ': ' if reject.file else ''}{reject.reason}"
            for reject in self.examples[:5]
        )
        raise PackError(
            f"{rejected:,} of {inputs:,} inputs were rejected, more than --max-rejects "
            f"{self.max_rejects} allows; for example{examples}\n"
            f"Finished shards are kept: mend the input, or allow more, and run the same command "
            "again."
        )
