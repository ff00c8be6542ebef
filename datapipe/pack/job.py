"""One pack: a reader, workers that prepare, and one sequencer that commits in input order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from datapipe.cpus import available_cpus
from datapipe.decode.image import MAX_PIXELS
from datapipe.decode.shrink import ImageFormat
from datapipe.errors import PackError
from datapipe.index.columns import open_columns
from datapipe.index.dataset import check_shards
from datapipe.index.manifest import (
    MANIFEST,
    Contribution,
    Manifest,
    Shard,
    read_manifest,
    write_manifest,
)
from datapipe.index.sidecars import parse_sidecars, present_sidecars, write_sidecars
from datapipe.pack.journal import (
    Journal,
    read_journal,
    refuse_foreign,
    remove_finished,
    remove_leftovers,
    remove_working_folder,
    same_inputs,
    same_options,
    working_folder,
)
from datapipe.pack.options import (
    MaxRejects,
    PackOptions,
    parse_max_rejects,
    parse_shard_size,
)
from datapipe.pack.prepare import Check, PrepareOptions
from datapipe.pack.raw import InputCount, ReadOptions
from datapipe.pack.readers import Reader, choose_reader
from datapipe.pack.report import PackReport
from datapipe.pack.sequence import Rehearsal, Sequencer, ShardSink, Sink, Tally
from datapipe.pack.space import check_space
from datapipe.pack.stage import Stage, local_path, open_stage
from datapipe.pack.team import CHUNK, Team
from datapipe.pack.worker import Input
from datapipe.pack.writers.shards import ShardSize, ShardWriter
from datapipe.pack.writing import writing
from datapipe.progress import Progress


def pack_dataset(
    raw: str | PathLike[str],
    out: str | PathLike[str],
    *,
    format: str | None = None,
    image_root: str | PathLike[str] | None = None,
    image_column: str | None = None,
    text_column: str | None = None,
    include: str | None = None,
    key_from: str | None = None,
    workers: int | None = None,
    shard_size: str | int = "512MB",
    check: Check = "decode",
    max_pixels: int = MAX_PIXELS,
    max_side: int | None = None,
    quality: int | None = None,
    image_format: ImageFormat = "keep",
    max_rejects: str | int = "5%",
    limit: int | None = None,
    append: bool = False,
    sidecars: str | Sequence[str] = (),
    space_check: bool = True,
    dry_run: bool = False,
    staging: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack raw image-text data into WebDataset shards with index and manifest.

    The same command continues a pack that was interrupted. Equal input and options give equal
    bytes, whatever `workers` is.

    Args:
        raw: file or folder of raw data.
        out: folder or URL for the shards; new, or that of the same pack interrupted.
        format: name of the reader; recognised where None.
        image_root: where relative image paths of annotation files start.
        image_column, text_column: names of the columns of a table.
        include: pattern that the files of records must match, such as "data/train-*".
        key_from: field of the records that keys begin with, instead of the inputs' ordinals.
        workers: processes that read and check; one per available CPU where None.
        shard_size: bytes such as "512MB", or a number of samples.
        check: "decode" refuses images that training could not decode, "header" reads headers.
        max_pixels: images with more pixels are rejected.
        max_side: images are made smaller until their longest side has so many pixels.
        quality: of images that are encoded anew, 1 to 100.
        image_format: "jpg" or "webp" encodes all others anew, "keep" leaves the format.
        max_rejects: a number, or a share such as "5%" judged after 1,000 inputs and at the end.
        limit: take no more inputs than these.
        append: add to the finished dataset in `out`, as new shards.
        sidecars: of "dali", "wids" and "energon", which index files of others to write too.
        space_check: refuse to start where the disk has not enough room.
        dry_run: read and check, but write nothing.
        staging: where the shards for a URL are kept until all have arrived, in a folder of their
            own; by default in the user's cache folder. It takes as much room as the dataset.
        storage_options: for fsspec, which writes to URLs: credentials, endpoints.

    Raises:
        PackError: the input is not recognised, the output belongs to something else, too many
            inputs were rejected, or the disk is full.
        StoreError: the URL cannot be read or written.
        IndexMismatch: what is in `out` is not what its manifest says.
    """
    started = time.monotonic()
    raw = Path(raw)
    stage = open_stage(out, staging, storage_options, append=append)
    place = str(out) if stage else str(local_path(out))
    out = stage.folder if stage else Path(place)
    read_options = ReadOptions(
        image_root=Path(image_root) if image_root else None,
        image_column=image_column,
        text_column=text_column,
        include=include,
        key_from=key_from,
    )
    reader = choose_reader(raw, format, read_options)
    for name in _given(read_options):
        if name not in reader.takes:
            option = f"--{name.replace('_', '-')}"
            raise PackError(f"{option} means nothing to the format {reader.name}; leave it out")
    if workers is not None and workers < 1:
        raise PackError(f"--workers {workers}: at least 1 is needed")
    if raw.is_dir() and out.resolve().is_relative_to(raw.resolve()):
        raise PackError(f"{out} lies inside the raw data {raw}; give a folder outside of it")
    if out.exists() and not out.is_dir():
        raise PackError(f"{out} is a file; give a folder")
    kinds = parse_sidecars(sidecars if isinstance(sidecars, str) else ",".join(sidecars))
    job = _Job(
        raw=raw,
        out=out,
        reader=reader,
        read_options=read_options,
        options=PackOptions(
            format=reader.name,
            shard_size=str(shard_size),
            check=check,
            limit=limit,
            max_pixels=max_pixels,
            max_side=max_side,
            quality=quality,
            image_format=image_format,
            image_column=image_column,
            text_column=text_column,
            include=include,
            key_from=key_from,
        ),
        workers=workers or available_cpus(),
        size=parse_shard_size(str(shard_size)),
        max_rejects=parse_max_rejects(str(max_rejects)),
        space_check=space_check,
        placed=stage.send if stage else lambda shard: None,
    )
    if stage is None:
        report = job.pack(append=append, sidecars=kinds, dry_run=dry_run)
    else:
        with stage.at_work(dry_run=dry_run):
            report = _pack_elsewhere(job, stage, place, kinds, dry_run=dry_run)
    return replace(report, seconds=round(time.monotonic() - started, 3), output=place)


def _pack_elsewhere(
    job: _Job, stage: Stage, url: str, sidecars: tuple[str, ...], *, dry_run: bool
) -> PackReport:
    """Pack to a URL, or find that it has been done."""
    there = stage.finished()
    if there is None:
        report = job.pack(append=False, sidecars=sidecars, dry_run=dry_run)
        if not dry_run:
            stage.finish()
        return replace(report, finished_before=False)
    job.same_as(there, url)
    if not dry_run:
        stage.add_sidecars(there, sidecars)
        stage.remove()
    return job.report(there, finished_before=True)


def _finished(out: Path) -> Manifest | None:
    return read_manifest(out) if (out / MANIFEST).exists() else None


def _given(options: ReadOptions) -> list[str]:
    """Names of the options that a user gave."""
    return [name for name, value in asdict(options).items() if value is not None]


@dataclass(kw_only=True)
class _Job:
    raw: Path
    out: Path
    reader: Reader
    read_options: ReadOptions
    options: PackOptions
    workers: int
    size: ShardSize
    max_rejects: MaxRejects
    space_check: bool
    placed: Callable[[Shard], None]  # told of every shard of this pack that is in place
    tally: Tally = field(default_factory=Tally)

    def pack(self, *, append: bool, sidecars: tuple[str, ...], dry_run: bool) -> PackReport:
        """Do what is still to be done in the folder."""
        before = _finished(self.out)
        if self.is_done(before, append):
            assert before
            if not dry_run:
                remove_finished(self.out, before)
            manifest = before
        elif dry_run:
            refuse_foreign(self.out)
            return self.rehearse(before)
        else:
            manifest = self.run(before)
        if not dry_run:
            # What is there already would not know of shards that were added.
            stale = () if manifest is before else present_sidecars(self.out)
            write_sidecars(self.out, manifest, {*sidecars, *stale})
        return self.report(manifest, finished_before=manifest is before)

    def report(self, manifest: Manifest, *, finished_before: bool) -> PackReport:
        """What was done, for an output that `manifest` tells of."""
        return PackReport(
            samples=manifest.samples,
            images=manifest.images,
            rejected=manifest.rejected,
            shards=len(manifest.shards),
            bytes=manifest.bytes,
            saved_bytes=manifest.saved_bytes,
            seconds=0.0,
            output=str(self.out),
            inputs=self.tally.inputs,
            reasons=dict(self.tally.reasons.most_common()),
            examples=tuple(self.tally.examples),
            finished_before=finished_before,
        )

    def is_done(self, before: Manifest | None, append: bool) -> bool:
        """Whether the finished dataset `before` holds what this pack would bring.

        Raises:
            PackError: the output is another's, or its state does not fit to `append`.
        """
        begun = read_journal(self.out)
        appending = bool(before and begun and begun.base == before.fingerprint)
        if append and before is None:
            state = "unfinished: finish it first, with" if begun else "no dataset yet: make it with"
            raise PackError(f"{self.out} is {state} the command without --append")
        if before is None:
            return False
        if before.foreign:
            raise PackError(
                f"{self.out} holds shards that someone else wrote, indexed where they lie; give a "
                "new folder"
            )
        check_shards(self.out, before)
        if not append:
            if appending:
                raise PackError(
                    f"{self.out}: data was being appended here; finish that first, with the same "
                    "command and --append"
                )
            self.same_as(before, self.out)
            return True
        last = before.parts[-1]
        if appending or last.options != self.options.to_dict():
            return False
        count = self._count_all()
        return (count.number, count.digest) == (last.inputs, last.inputs_sha256)

    def same_as(self, before: Manifest, place: Path | str) -> None:
        """Refuse a finished dataset that this pack would not make.

        Raises:
            PackError: options or inputs differ.
        """
        part = before.parts[0]
        same_options(place, part.options, self.options.to_dict())
        same_inputs(place, self._count_all(), part.inputs, part.inputs_sha256)

    def run(self, base: Manifest | None) -> Manifest:
        """Write what is still to be written, committing shard by shard."""
        with working_folder(self.out) as work:
            if base != _finished(self.out):
                if not read_journal(self.out):
                    remove_working_folder(self.out)
                raise PackError(
                    f"{self.out}: another pack has just ended here; run the same command again"
                )
            with writing(self.out):
                journal = Journal(self.out, self.options.to_dict(), base)
            first = len(base.shards) if base else 0
            writer = ShardWriter(self.out, work, first + len(journal.shards))
            try:
                for shard in journal.shards:
                    self.placed(shard)
                part = self._write(journal, writer, base, work)
                with writing(self.out):
                    journal.publish_rejects()
            finally:
                writer.close()
                journal.close()
            manifest = Manifest(
                shards=(*(base.shards if base else ()), *journal.shards),
                parts=(*(base.parts if base else ()), part),
            )
            with writing(self.out):
                remove_leftovers(self.out)
                open_columns(self.out, manifest)
                write_manifest(self.out, manifest)
            remove_working_folder(self.out)
        return manifest

    def _write(
        self, journal: Journal, writer: ShardWriter, base: Manifest | None, work: Path
    ) -> Contribution:
        inputs = self._inputs(work)
        count = InputCount()
        for taken in itertools.islice(inputs, journal.last.inputs):
            count.add(taken)
        if journal.last.inputs:
            same_inputs(self.out, count, journal.last.inputs, journal.last.digest)
        sequencer = self._sequencer(ShardSink(writer, journal, self.placed), count)
        sequencer.rejected = journal.rejected
        sequencer.saved_bytes = journal.last.saved_bytes
        self._sequence(sequencer, inputs, base)
        writer.drain()
        if not journal.shards:
            examples = self.tally.examples
            raise PackError(
                f"no sample was found among {count.number:,} inputs"
                + (f", the first reject: {examples[0].reason}" if examples else "")
            )
        with writing(self.out):
            return journal.part(count, sequencer.saved_bytes, self.options.to_dict())

    def rehearse(self, base: Manifest | None) -> PackReport:
        """Read and check everything, write nothing."""
        sink = Rehearsal()
        sequencer = self._sequencer(sink, InputCount())
        self._sequence(sequencer, self._inputs(None), base)
        return PackReport(
            samples=sink.total_samples,
            images=sink.images,
            rejected=sequencer.rejected,
            shards=sink.shards,
            bytes=sink.total_bytes,
            saved_bytes=sequencer.saved_bytes,
            seconds=0.0,
            output=str(self.out),
            inputs=self.tally.inputs,
            reasons=dict(self.tally.reasons.most_common()),
            examples=tuple(self.tally.examples),
            dry_run=True,
        )

    def _sequencer(self, sink: Sink, count: InputCount) -> Sequencer:
        return Sequencer(
            sink=sink,
            size=self.size,
            max_rejects=self.max_rejects,
            count=count,
            tally=self.tally,
        )

    def _sequence(
        self, sequencer: Sequencer, inputs: Iterator[Input], base: Manifest | None
    ) -> None:
        """Prepare `inputs`, which begin where `sequencer` stands, and put them in order."""
        options = PrepareOptions(
            check=self.options.check,
            max_pixels=self.options.max_pixels,
            shrink=self.options.shrink,
            named_keys=self.options.key_from is not None,
            key_salt=str(len(base.parts)) if base else "",
        )
        done = sequencer.count.number
        first = done + (base.inputs if base else 0)
        expected = self._expected()
        left = max(expected - done, 0) if expected else None
        few = left is not None and left <= CHUNK
        with closing(Team(options, 1 if few else self.workers)) as team:
            if self.space_check and isinstance(sequencer.sink, ShardSink):
                inputs = check_space(inputs, left, self.out, options)
            with Progress("packing", unit="sample", total=left) as progress:
                sequencer.run(team.prepared(inputs, first), progress)

    def _inputs(self, scratch: Path | None) -> Iterator[Input]:
        options = replace(self.read_options, scratch=scratch)
        return itertools.islice(self.reader.read(self.raw, options), self.options.limit)

    def _expected(self) -> int | None:
        total, limit = self.reader.estimate(self.raw, self.read_options), self.options.limit
        return min(total, limit) if total and limit else total

    def _count_all(self) -> InputCount:
        """Look at every input without reading what it names."""
        count = InputCount()
        with Progress("comparing", unit="input", total=self._expected()) as progress:
            for taken in self._inputs(None):
                count.add(taken)
                progress.advance()
        return count
