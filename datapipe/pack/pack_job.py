"""One pack to a folder: a reader, workers that prepare, a sequencer that commits in input order."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from datapipe.errors import PackError, SampleError
from datapipe.index.dataset import check_shards
from datapipe.index.ignore import parse_ignore
from datapipe.index.manifest import MANIFEST, Manifest, Shard, read_manifest
from datapipe.index.sidecars import present_sidecars, write_sidecars
from datapipe.pack.engine import Engine
from datapipe.pack.input.members import with_unread_fields
from datapipe.pack.input.raw_sample import (
    InputCount,
    InputFacts,
    RawInput,
    RawSample,
    facts_of,
    sample_of,
)
from datapipe.pack.journal import (
    Journal,
    read_journal,
    refuse_foreign,
    remove_finished,
    remove_working_folder,
    same_inputs,
    same_options,
    working_folder,
)
from datapipe.pack.notes import Notes
from datapipe.pack.options import MaxRejects, PackOptions, given_options
from datapipe.pack.readers import RawReading
from datapipe.pack.recognition.unused_files import Leftovers
from datapipe.pack.report import PackReport
from datapipe.pack.same_texts import refuse_changed_texts
from datapipe.pack.sequence import SHOWN, DryRunSink, PackTally, Sequencer, Sink
from datapipe.pack.space import check_room, check_space
from datapipe.pack.teaching import show
from datapipe.pack.workers.pool import CHUNK
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.writers.shards import ShardSize, writing
from datapipe.progress import Progress, readable_size
from datapipe.remote.upload import RemoteTarget


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
    all_read: bool = False  # the last pass read all inputs, none was left out by `limit`

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
            # What is there already would not know of shards that were added.
            stale = () if manifest is before else present_sidecars(self.out)
            write_sidecars(self.out, manifest, {*sidecars, *stale})
        return self.report(manifest, finished_before=manifest is before)

    def report(self, manifest: Manifest, *, finished_before: bool) -> PackReport:
        """Return the report on an output that has this manifest."""
        return self._report(
            samples=manifest.samples,
            images=manifest.images,
            rejected=manifest.rejected,
            shards=len(manifest.shards),
            bytes=manifest.bytes,
            saved_bytes=manifest.saved_bytes,
            finished_before=finished_before,
        )

    def _report(self, **output: Any) -> PackReport:
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
            **output,
        )

    def is_done(self, before: Manifest | None, append: bool) -> bool:
        """Return whether the finished dataset `before` holds what this pack would bring.

        PackError if the output is another's, or its state does not fit to `append`.
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
                f"{self.out} holds shards that someone else wrote, indexed where they are; give a "
                "new folder"
            )
        if self.target is None:
            check_shards(self.out, before)
        if append and before.arrays is not None:
            raise PackError(
                f"{self.out} holds arrays, which cannot be added to; append to the shards and "
                "convert them again"
            )
        if append and "format" not in before.parts[0].options:
            raise PackError(
                f"{self.out} was made from other datasets, so new keys could be those of old "
                "samples; pack into a new folder, and `datapipe merge` both"
            )
        if not append:
            if appending:
                raise PackError(
                    f"{self.out}: data was being appended here; finish that first, with the same "
                    "command and --append"
                )
            self.same_as(before, self.out)
            return True
        last = before.parts[-1]
        if appending or given_options(last.options) != self.options.to_dict():
            return False
        count = self._count_all()
        return (count.number, count.digest) == (last.inputs, last.inputs_sha256)

    def same_as(self, before: Manifest, out: Path | str) -> None:
        """Refuse a finished dataset that this pack would not make."""
        part = before.parts[0]
        same_options(out, given_options(part.options), self.options.to_dict())
        same_inputs(out, self._count_all(), part.inputs, part.inputs_sha256)

    def run(self, base: Manifest | None) -> Manifest:
        """Write what is still to be written, committing shard by shard."""
        with working_folder(self.out, lock_check=self.lock_check) as work:
            if base != finished_in(self.out):
                if not read_journal(self.out):
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
        if self.options.map is None:  # which makes other texts of what files hold
            done = refuse_changed_texts(self.out, journal.shards, done)
        for sample in done:
            count.add(self._facts(sample))
        if journal.last.inputs:
            same_inputs(self.out, count, journal.last.inputs, journal.last.digest)
        sequencer = self._sequencer(sink, count)
        self.tally.rejects.number = journal.rejected
        sequencer.saved_bytes, sequencer.reject = journal.last.saved_bytes, journal.reject
        self._sequence(sequencer, inputs, base)
        sink.drain()
        if not journal.shards:
            examples = self.tally.rejects.examples
            raise PackError(
                f"no sample was found among {count.number:,} inputs"
                + (f", the first reject: {examples[0].reason}" if examples else "")
            )
        options = self.options.to_dict() | self.notes.found
        return journal.finish(count, sequencer.saved_bytes, options)

    def rehearse(self, base: Manifest | None) -> PackReport:
        """Read and check everything, write nothing."""
        sink = DryRunSink()
        self.tally.rejects.dry_run = True
        sequencer = self._sequencer(sink, InputCount())
        self._sequence(sequencer, self._inputs(None), base)
        return self._report(
            samples=sink.total_samples,
            images=sink.images,
            rejected=self.tally.rejects.number,
            shards=sink.shards,
            bytes=sink.total_bytes,
            saved_bytes=sequencer.saved_bytes,
            dry_run=True,
        )

    def _sequencer(self, sink: Sink, count: InputCount) -> Sequencer:
        return Sequencer(
            sink=sink,
            size=self.size,
            max_rejects=self.max_rejects,
            count=count,
            tally=self.tally,
            note_input=self._note,
            note=self.engine.note,
        )

    def _sequence(
        self, sequencer: Sequencer, inputs: Iterator[RawInput], base: Manifest | None
    ) -> None:
        """Prepare `inputs`, which begin where `sequencer` stands, and put them in order."""
        self.tally.map = self._map
        if self.options.map is not None and not sequencer.count.number:
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
        done = sequencer.count.number
        expected = self._expected()
        left = max(expected - done, 0) if expected else None
        few = left is not None and left <= CHUNK and options.videos is None
        with closing(self.engine.workers(options, few=few)) as pool:
            writes_here = self.target is None and not isinstance(sequencer.sink, DryRunSink)
            if self.space_check and writes_here:
                inputs = check_space(inputs, left, self.out, options)
            with Progress("packing", unit="sample", total=left) as progress:
                first = done + (base.inputs if base else 0)
                sequencer.run(pool.prepared(inputs, first), progress)
        self._note_leftovers()
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
        inputs = itertools.islice(self._to_the_end(inputs), self.options.limit)
        return with_unread_fields(inputs, self.notes)

    def _to_the_end(self, inputs: Iterator[RawInput]) -> Iterator[RawInput]:
        self.all_read = False
        yield from inputs
        self.all_read = True

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

    def _note_leftovers(self) -> None:
        if self.leftovers is not None and self.all_read:
            self.leftovers.note()

    def _expected(self) -> int | None:
        total, limit = self.reading.estimate(), self.options.limit
        return min(total, limit) if total and limit else total

    def _count_all(self) -> InputCount:
        """Look at every input without reading what it names."""
        count = InputCount()
        with Progress("comparing", unit="input", total=self._expected()) as progress:
            for sample in self._inputs(None):
                count.add(self._facts(sample))
                progress.advance()
        self._note_leftovers()
        return count
