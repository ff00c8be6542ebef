"""One pack to a folder: a reader, workers that prepare, shards in the order of the inputs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir

from datapipe.errors import PackError, SampleError
from datapipe.index.dataset import check_shards
from datapipe.index.ignore import parse_ignore
from datapipe.index.manifest import MANIFEST, Contribution, Manifest, Shard, read_manifest
from datapipe.index.sidecars import present_sidecars, write_sidecars
from datapipe.pack.engine import Engine
from datapipe.pack.input.members import with_unread_fields
from datapipe.pack.input.raw_sample import (
    InputCount,
    InputFacts,
    RawInput,
    RawSample,
    Reject,
    facts_of,
    sample_of,
)
from datapipe.pack.journal import (
    Journal,
    begun_on,
    refuse_foreign,
    remove_finished,
    remove_working_folder,
    same_options,
    working_folder,
)
from datapipe.pack.notes import Notes
from datapipe.pack.options import MaxRejects, PackOptions, given_options
from datapipe.pack.readers import RawReading
from datapipe.pack.recognition.unused_files import Leftovers
from datapipe.pack.report import PackReport
from datapipe.pack.same_inputs import refuse_changed, same_inputs
from datapipe.pack.sequence import SHOWN, DryRunSink, PackTally, Sink, in_shards
from datapipe.pack.space import check_room, check_space
from datapipe.pack.teaching import show
from datapipe.pack.workers.pool import CHUNK
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.writers.shards import ShardSize, writing
from datapipe.progress import Progress, readable_size
from datapipe.remote.upload import RemoteTarget
from datapipe.report.table import counted


def finished_in(out: Path) -> Manifest | None:
    return read_manifest(out) if (out / MANIFEST).exists() else None


@dataclass(kw_only=True)
class Job:
    """One pack in a folder; `placed` is called with every shard that is in place."""

    reading: RawReading
    out: Path
    options: PackOptions
    engine: Engine
    size: ShardSize
    max_rejects: MaxRejects
    space_check: bool
    lock_check: bool
    placed: Callable[[Shard], None]
    confirm: Callable[[], None] = lambda: None  # called when all inputs were read; may raise
    target: RemoteTarget | None = None  # where tars go; None if they go to `out`, as the rest does
    tally: PackTally = field(default_factory=PackTally)
    notes: Notes = field(default_factory=Notes)
    leftovers: Leftovers | None = None

    def pack(self, *, append: bool, sidecars: tuple[str, ...], dry_run: bool) -> PackReport:
        """Do what is still to be done in the folder."""
        before = finished_in(self.out)
        if self.is_done(before, append):
            assert before
            if not dry_run:
                remove_finished(self.out, before, lock_check=self.lock_check)
            manifest = before
        elif dry_run:
            refuse_foreign(self.out)
            return self.rehearse(before)
        else:
            manifest = self.run(before)
        if not dry_run:
            # What is there already may not know of shards that were added, by a run that was killed
            # after them, too.
            kinds = {*sidecars, *present_sidecars(self.out)}
            write_sidecars(self.out, manifest, kinds, rerun=manifest is before)
        return self.report(manifest, finished_before=manifest is before)

    def report(
        self, manifest: Manifest, *, finished_before: bool = False, dry_run: bool = False
    ) -> PackReport:
        """Return the report on an output that has this manifest."""
        image_notes = self.tally.image_notes(self.options.pages)
        if self.notes.captions_repeat_images and self.tally.repeats:
            image_notes.append(
                f"{self.tally.repeats:,} samples repeat an image for another of its captions and "
                f"take {readable_size(self.tally.repeated_bytes)}; --captions first and --captions "
                "join store each image once"
            )
        unmatched = []
        if self.options.limit is None and self.tally.inputs:  # all was read
            unmatched = self.notes.unmatched(parse_ignore(self.options.ignore))
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
            reasons=dict(self.tally.rejects.reasons.most_common()),
            examples=tuple(self.tally.rejects.examples),
            notes=(*self.notes.lines(), *unmatched, *image_notes),
            left_out=self.notes.left_out,
            captions_unused=self.notes.captions_unused,
            lost=self.engine.lost,
            videos=self.tally.videos,
            frames=self.tally.frames,
            teaching=self.tally.teaching,
            shown=tuple(self.tally.shown),
            finished_before=finished_before,
            dry_run=dry_run,
        )

    def is_done(self, before: Manifest | None, append: bool) -> bool:
        """Return whether the finished dataset `before` holds what this pack would bring.

        PackError if the output is another's, or its state does not fit to `append`.
        """
        begun = begun_on(self.out)
        if before is None:
            if not append:
                return False
            state = "no dataset yet: make it with"
            if begun is not None:
                state = "unfinished: finish it first, with"
            raise PackError(f"{self.out} is {state} the command without --append")
        if before.foreign:
            raise PackError(
                f"{self.out} holds shards that someone else wrote, indexed where they are; give a "
                "new folder"
            )
        if self.target is None:
            check_shards(self.out, before)
        if not append:
            if begun == before.fingerprint:
                raise PackError(
                    f"{self.out}: data was being appended here; finish that first, with the same "
                    "command and --append"
                )
            self.same_as(before, self.out, before.shards[: before.parts[0].shards])
            return True
        if before.arrays is not None:
            raise PackError(
                f"{self.out} holds arrays, which cannot be added to; append to the shards and "
                "convert them again"
            )
        if "format" not in before.parts[0].options:
            raise PackError(
                f"{self.out} was made from other datasets, so new keys could be those of old "
                "samples; pack into a new folder, and `datapipe merge` both"
            )
        ends = itertools.accumulate(part.shards for part in before.parts)
        alike = [
            (before.shards[end - part.shards : end], part)
            for end, part in zip(ends, before.parts, strict=True)
            if given_options(part.options) == self.options.to_dict()
        ]
        count = self._count_all() if alike else InputCount()
        for shards, part in alike:
            if (count.number, count.digest) == (part.inputs, part.inputs_sha256):
                try:
                    self._count_all(shards)
                except PackError as error:
                    raise PackError(f"{error} (`datapipe merge` joins both)") from error
                return True
        return False

    def _compared(
        self, shards: Sequence[Shard], inputs: Iterator[RawInput], *, strict: bool
    ) -> Iterator[RawInput]:
        """Return the inputs of finished shards, which are compared with these on the way."""
        options = self.options
        # Texts made by --map, and images that are shrunk or split into pages, are never the files.
        texts, images = options.map is None, not options.shrink.active and options.pages == "first"
        return refuse_changed(self.out, shards, inputs, texts=texts, images=images, strict=strict)

    def same_as(self, before: Manifest, out: Path | str, shards: Sequence[Shard] = ()) -> None:
        """Refuse a finished dataset, of which `shards` are here, that this pack would not make."""
        part = before.parts[0]
        same_options(out, given_options(part.options), self.options.to_dict())
        same_inputs(out, self._count_all(shards), part.inputs, part.inputs_sha256)

    def run(self, base: Manifest | None) -> Manifest:
        """Write what is still to be written, committing shard by shard."""
        with working_folder(self.out, lock_check=self.lock_check) as work:
            if base != finished_in(self.out):
                if begun_on(self.out) is None:
                    remove_working_folder(self.out)
                raise PackError(
                    f"{self.out}: another pack has just ended here; run the same command again"
                )
            with writing(self.out):
                options = self.options.to_dict()
                journal = Journal(self.out, options, base, self.target, self.placed)
            with closing(journal), closing(self.engine.sink(journal)) as sink:
                for shard in journal.shards:
                    self.placed(shard)
                return self._write(journal, sink, base, self._inputs(work))

    def _write(
        self, journal: Journal, sink: Sink, base: Manifest | None, inputs: Iterator[RawInput]
    ) -> Manifest:
        count = InputCount()
        done: Iterator[RawInput] = itertools.islice(inputs, journal.last.inputs)
        for sample in self._compared(journal.shards, done, strict=True):
            count.add(self._facts(sample))
        if journal.last.inputs:
            same_inputs(self.out, count, journal.last.inputs, journal.last.digest)
        self.tally.rejects, count.saved_bytes = journal.rejects, journal.last.saved_bytes
        self._sequence(sink, count, journal.reject, inputs, base)
        sink.drain()
        if not journal.shards:
            examples = self.tally.rejects.examples
            raise PackError(
                f"no sample was found among {counted(count.number, 'input')}"
                + (f", the first reject: {examples[0].reason}" if examples else "")
            )
        options = self.options.to_dict() | self.notes.found
        return journal.finish(count, options)

    def rehearse(self, base: Manifest | None) -> PackReport:
        """Read and check everything, write nothing."""
        sink, count = DryRunSink(), InputCount()
        self.tally.rejects.dry_run = True
        self._sequence(sink, count, self.tally.rejects.add, self._inputs(None), base)
        made = Contribution(
            shards=len(sink.shards),
            inputs=count.number,
            inputs_sha256=count.digest,
            rejected=self.tally.rejects.number,
            saved_bytes=count.saved_bytes,
        )
        return self.report(Manifest(shards=tuple(sink.shards), parts=(made,)), dry_run=True)

    def _sequence(
        self,
        sink: Sink | DryRunSink,
        count: InputCount,
        reject: Callable[[Reject], None],
        inputs: Iterator[RawInput],
        base: Manifest | None,
    ) -> None:
        """Prepare `inputs`, which begin where `count` stands, and put them in order."""
        self.tally.map = self._map
        done = count.number
        if self.options.map is not None and not done:
            inputs = self._announced(inputs)
        options = PrepareOptions(
            check=self.options.check,
            max_pixels=self.options.max_pixels,
            shrink=self.options.shrink,
            pages=self.options.pages,
            videos=self.options.videos,
            named_keys=self.options.key_from is not None,
            map=self._map,
            key_salt=str(len(base.parts)) if base else "",
        )
        expected = self._expected()
        left = max(expected - done, 0) if expected else None
        few = left is not None and left <= CHUNK and options.videos is None
        with closing(self.engine.workers(options, few=few)) as pool:
            writes_here = self.target is None and not isinstance(sink, DryRunSink)
            if self.space_check and writes_here:
                inputs = check_space(inputs, left, self.out, options)
            with Progress("packing", unit="sample", total=left) as progress:
                parts = pool.prepared(inputs, done + (base.inputs if base else 0))
                limits = self.size, self.max_rejects
                for taken, part in in_shards(parts, sink, count, self.tally, reject, *limits):
                    for sample, facts in zip(taken, part.facts, strict=True):
                        self._note(sample.source, facts)
                    rejected = self.tally.rejects.number
                    notes = [f"{rejected:,} rejected" if rejected else "", self.engine.note()]
                    progress.advance(len(taken), note=", ".join(filter(None, notes)))
        self._note_leftovers(count)
        self.confirm()

    @property
    def _map(self) -> str | None:
        """Map of fields that is still to be applied; the table reader applies it itself."""
        return self.options.map if self.reading.reader.name != "table" else None

    def _announced(self, inputs: Iterator[RawInput]) -> Iterator[RawInput]:
        """Show what a user's map makes of the first inputs; return all of them."""
        first = list(itertools.islice(inputs, SHOWN))
        print(f"--map {self.options.map!r} makes of the first records:", file=sys.stderr)
        for sample in first:
            try:
                read = sample_of(sample).sample
                if isinstance(read, RawSample):
                    lines = show(read, self._map).lines()
                else:
                    lines = [f"{read.source}: rejected, {read.reason}"]
            except SampleError as error:
                lines = [f"{sample.source}: rejected, {error.reason}"]
            print(*lines, sep="\n", file=sys.stderr)
        return itertools.chain(first, inputs)

    def _inputs(self, scratch: Path | None) -> Iterator[RawInput]:
        self.notes = Notes()  # of this pass alone, as inputs may be read twice
        reading = self.reading
        if self.space_check and (spooled := getattr(reading.source, "spooled", 0)):
            home, remedy = scratch or Path(gettempdir()), "or leave out images that no text names"
            check_room(home, spooled, "a temporary copy of the images to join", remedy)
        inputs = reading.raw_inputs(self.notes, scratch)
        self.leftovers = None
        if reading.reader.name != "folder":
            self.leftovers = Leftovers(reading.survey, reading.reader.name, self.notes)
        return with_unread_fields(itertools.islice(inputs, self.options.limit), self.notes)

    def _facts(self, found: RawInput) -> InputFacts:
        """Return the facts of an input that no worker gets, and note them."""
        facts = facts_of(sample_of(found))
        self._note(found.source, facts)
        return facts

    def _note(self, source: str, facts: InputFacts) -> None:
        for field_name, remedy in facts.unused:
            self.notes.pass_over(field_name, source, remedy)
        if self.leftovers is not None:
            self.leftovers.take(source, facts.paths)

    def _note_leftovers(self, count: InputCount) -> None:
        all_read = self.options.limit is None or count.number < self.options.limit
        if self.leftovers is not None and all_read:
            self.leftovers.note()

    def _expected(self) -> int | None:
        total, limit = self.reading.estimate(), self.options.limit
        return min(total, limit) if total and limit else total

    def _count_all(self, shards: Sequence[Shard] = ()) -> InputCount:
        """Look at every input; compare what it names only with finished `shards`."""
        count = InputCount()
        with Progress("comparing", unit="input", total=self._expected()) as progress:
            for sample in self._compared(shards, self._inputs(None), strict=False):
                count.add(self._facts(sample))
                progress.advance()
        self._note_leftovers(count)
        return count
