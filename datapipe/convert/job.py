"""`convert_dataset`: every image of a dataset decoded once, into arrays that are mapped.

Chunks of samples are made by workers, in any order, and are written in the order of the
shards, so the bytes do not depend on the number of workers. After each shard all files are synced
and their lengths noted; the same command continues there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.convert.array_files import (
    ArrayFiles,
    ConvertJournal,
    array_bytes,
    image_writer,
    take_back,
)
from datapipe.convert.chunk import ArrayChunk, ChunkMaker, PartRows, chunk_maker
from datapipe.cpus import PackWorkers, available_cpus
from datapipe.declared import Word, checked
from datapipe.decode.array_spec import array_spec, image_identity
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PackError, PlanError, StoreError
from datapipe.index.dataset import Dataset, check_shards, open_dataset
from datapipe.index.files.block_checksums import SUMS, write_sums
from datapipe.index.manifest import (
    MANIFEST,
    Arrays,
    Contribution,
    Manifest,
    read_manifest,
    replace_file,
)
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.journal import (
    REJECTS,
    publish,
    refuse_foreign,
    remove_working_folder,
    same_options,
    working_folder,
)
from datapipe.pack.options import MaxRejects, parse_max_rejects
from datapipe.pack.rejects import RejectCounts
from datapipe.pack.space import check_room
from datapipe.pack.url_upload import local_path
from datapipe.pack.writers.shards import indexed_shard, writing
from datapipe.progress import Progress
from datapipe.remote.folder import RemoteFolder
from datapipe.report.table import counted
from datapipe.store.arrays import CHECKED, IMAGES, TEXTS
from datapipe.store.open import open_store
from datapipe.store.protocol import Store
from datapipe.text.encode import TextEncoder
from datapipe.text.spec import TextSpec
from datapipe.text.videos import frame_of
from datapipe.torch_threads import default_kept, work_alone
from datapipe.workers.engine import EngineName, EngineSpec, open_pool
from datapipe.workers.protocol import WorkerPool
from datapipe.workers.ray_tasks import Stored
from datapipe.workers.threads import ThreadPool

_CHUNK = 16  # samples that a thread takes at a time


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """Counts and reasons of a finished conversion.

    Attributes:
        samples, images, bytes: counts of the arrays, and the size of all their files.
        rejected: samples of the shards that could not be used.
        seconds: this run took.
        reasons: number of rejected samples by reason, in this run.
        examples: a few of these samples.
        output: the folder.
        finished_before: True if there was nothing to do.

    Examples:
        >>> report = datapipe.convert_dataset("shards/", "arrays/")
        >>> report.samples, report.images, report.rejected
        (8, 8, 0)
    """

    samples: int
    images: int
    rejected: int
    bytes: int
    seconds: float
    output: str
    reasons: dict[str, int] = field(default_factory=dict)
    examples: tuple[Reject, ...] = ()
    finished_before: bool = False


@checked(PackError)
def convert_dataset(
    shards: str | PathLike[str],
    arrays: str | PathLike[str],
    *,
    image: ImageSpec | None = ImageSpec(),  # noqa: B008  (frozen)
    text: TextSpec | None = None,
    workers: PackWorkers | None = None,
    engine: EngineName = "local",
    address: Word | None = None,
    max_rejects: Word | int = "5%",
    space_check: bool = True,
    lock_check: bool = True,
) -> ConvertReport:
    """Decode every image of a packed dataset once, into arrays that `make_loader` maps.

    The folder holds standard `.npy` files beside the index: `images.npy`, uint8 [I, H, W, 3] with
    `image_offsets.npy`, int64 [N + 1]; `texts.npy`, uint8, what captions and JSON members hold; and
    with `text` `tokens.npy` and `labels.npy`, int32, with `token_offsets.npy`. The same command
    continues a conversion that was interrupted, and equal shards and options give equal bytes.

    Args:
        shards: folder or URL that `datapipe pack` wrote, or folder of tars from another writer.
        arrays: folder for the arrays; new, or that of the same conversion interrupted.
        image: form of the images: one size, `resize="stretch"`, `"pad"` or `"crop"`. The loader
            normalises and mirrors them. None leaves images out.
        text: tokens are written too, those of texts alone; other tokenizers still work.
        workers: threads; one per available CPU where None.
        engine, address: engine and cluster, as in `pack_dataset`; tasks decode images and write
            them, so the nodes share the folder of the arrays.
        max_rejects: most samples that may be rejected, a number or a share such as "5%".
        space_check: refuse to start if the disk is too small.
        lock_check: refuse to start where files cannot be locked against a second conversion.

    Raises:
        PlanError: images would have many sizes, or differ from epoch to epoch.
        PackError: the output belongs to something else, too many samples were refused, or the disk
            is full.
        IndexMismatch: there is no finished dataset at `shards`, or it changed.
        WorkerError: the cluster cannot be used, or a node does not see shards or arrays.

    Examples:
        >>> image = datapipe.ImageSpec(size=224, resize="crop")
        >>> report = datapipe.convert_dataset("shards/", "arrays/", image=image)
        >>> next(iter(datapipe.make_loader("arrays/", batch_size=4)))["pixel_values"].shape
        torch.Size([4, 3, 224, 224])
    """
    started = time.monotonic()
    chosen = EngineSpec(engine=engine, address=address)
    out = array_folder(arrays)
    dataset = open_dataset(shards)
    if dataset.manifest.arrays is not None:
        raise PackError(f"{shards} holds arrays already; give the shards that they were made from")
    if not isinstance(dataset.folder, RemoteFolder) and out.resolve() == dataset.folder.resolve():
        raise PackError(f"{out} holds the shards; give another folder for the arrays")
    spec = None if image is None or not dataset.manifest.images else array_spec(image)
    encoder = None if text is None else TextEncoder(text)
    options, limit = conversion_options(spec, encoder), parse_max_rejects(str(max_rejects))
    if (there := arrays_at(out)) is not None:
        same_options(out, there.parts[-1].options, options)
        if there.parts[-1].inputs_sha256 != dataset.manifest.fingerprint:
            raise PackError(
                f"{out} holds the arrays of other shards; give a new folder, or the shards as they "
                "were"
            )
        remove_working_folder(out)
        return report_of(there, out, started)
    if not dataset.manifest.samples:
        raise PackError(f"{dataset.folder} holds no samples")
    job = _Conversion(dataset, out, spec, encoder, options, workers, chosen, limit)
    with working_folder(out, lock_check=lock_check) as work, writing(out):
        manifest, refused = job.run(work, space_check=space_check)
    return report_of(manifest, out, started, refused)


def array_folder(arrays: str | PathLike[str]) -> Path:
    """Return the folder that arrays go to; `PackError` for a URL."""
    if (out := local_path(arrays)) is None:
        raise PackError(f"{arrays}: arrays are mapped and must be local; give a folder")
    return out


def arrays_at(out: Path) -> Manifest | None:
    """Return the manifest of finished arrays, None for a new folder.

    `PackError` for any other folder, `IndexMismatch` if a file is missing or was cut since.
    """
    if not (out / MANIFEST).exists():
        refuse_foreign(out)
        return None
    manifest = read_manifest(out)
    if manifest.arrays is None:
        raise PackError(f"{out} holds shards; give another folder for the arrays")
    check_shards(out, manifest)
    return manifest


def report_of(
    manifest: Manifest, out: Path, started: float, refused: RejectCounts | None = None
) -> ConvertReport:
    """Return the report on arrays; they were finished before if nothing says what was refused."""
    assert manifest.arrays is not None
    now = refused or RejectCounts()
    return ConvertReport(
        samples=manifest.samples,
        images=manifest.images if manifest.arrays.image else 0,
        rejected=manifest.parts[-1].rejected,
        bytes=manifest.bytes,
        seconds=round(time.monotonic() - started, 3),
        output=str(out),
        reasons=dict(now.reasons.most_common()),
        examples=tuple(now.examples),
        finished_before=refused is None,
    )


def conversion_options(image: ImageSpec | None, encoder: TextEncoder | None) -> dict[str, Any]:
    """Return the options that the bytes of arrays depend on, beside the shards.

    PlanError if images would have many sizes.
    """
    if encoder is not None and encoder.spec.pairs:
        raise PlanError(
            "arrays hold one text a sample, and TextSpec(pairs=True) makes two; leave text= out, "
            "and loaders of the arrays encode both answers"
        )
    return {
        "image": {} if image is None else image_identity(image),
        "tokenizer_and_template": "" if encoder is None else encoder.digest,
    }


@dataclass(frozen=True)
class _Conversion:
    dataset: Dataset
    out: Path
    spec: ImageSpec | None
    encoder: TextEncoder | None
    options: dict[str, Any]
    workers: int | None
    engine: EngineSpec
    max_rejects: MaxRejects

    def run(self, work: Path, *, space_check: bool) -> tuple[Manifest, RejectCounts]:
        """Write what is still to be written; count what was refused."""
        source = self.dataset.manifest
        take_back(self.out, work)
        options = {"source": source.fingerprint, **self.options}
        row = 0 if self.spec is None else 3 * self.spec.height * self.spec.width
        with closing(ConvertJournal(work, options, self.out, row)) as journal:
            if space_check and not journal.parts:
                size, content = (
                    array_bytes(self.dataset, self.spec),
                    counted(source.images, "image"),
                )
                check_room(self.out, size, content, "or a smaller --image-size")
            files = ArrayFiles(
                work,
                size=None if self.spec is None else (self.spec.height, self.spec.width),
                images=source.images,
                tokens=self.encoder is not None,
                noted=journal.noted,
            )
            with closing(files):
                with closing(open_store(self.dataset)) as store:
                    self._write(store, files, journal, work)
                names = files.finish()
            return self._publish(journal, names, work), journal.rejects

    def _write(self, store: Store, files: ArrayFiles, journal: ConvertJournal, work: Path) -> None:
        columns, shards = self.dataset.columns, self.dataset.manifest.shards
        edges, count = columns.shard_sample.tolist(), self.workers or available_cpus()
        make = ChunkMaker(self.dataset, store, self.spec, self.encoder).make
        options: Any = {"name": "datapipe-convert", "initializer": work_alone}
        makers: WorkerPool[range, Stored[ArrayChunk]]
        writers: WorkerPool[Stored[int], None]
        with ExitStack() as opened:
            cluster = opened.enter_context(self.engine.cluster(self.workers))
            makers = open_pool(
                cluster,
                partial(chunk_maker, self.dataset.opener, self.spec, self.encoder),
                partial(ThreadPool, make, count, **options),
                is_stored=True,
            )
            opened.callback(makers.close)
            writers = open_pool(
                None if self.spec is None else cluster,
                partial(image_writer, (work / IMAGES).absolute()),
                partial(ThreadPool, files.put, count, name="datapipe-write"),
            )
            opened.callback(writers.close)
            progress = opened.enter_context(Progress("converting", unit="sample", total=edges[-1]))
            progress.advance(edges[len(journal.parts)])
            for shard in range(len(journal.parts), len(shards)):
                first, stop = edges[shard : shard + 2]
                rows = PartRows(self.dataset, shard, first)
                starts = range(first, stop, _CHUNK)
                with default_kept():
                    made = makers.run(range(at, min(at + _CHUNK, stop)) for at in starts)
                for _ in writers.run(self._sequenced(made, rows, files, journal, progress)):
                    pass
                at_end = shard + 1 == len(shards)
                journal.rejects.check(self.max_rejects, journal.inputs, at_end=at_end)
                path = work / f"part-{shard:06d}.parquet"
                part = indexed_shard(path, rows.table(), TEXTS, rows.text_bytes)
                journal.commit(part, files.sync())

    def _sequenced(
        self,
        chunks: Iterable[Stored[ArrayChunk]],
        rows: PartRows,
        files: ArrayFiles,
        journal: ConvertJournal,
        progress: Progress,
    ) -> Iterator[Stored[int]]:
        """Take down all but the images of each chunk, in order; yield these with their number."""
        columns = self.dataset.columns
        for made, images in chunks:
            samples = len(made.samples) + len(made.refused)
            rows.add(made, files.texts)
            files.append(made)
            journal.inputs += samples
            for sample, error in made.refused:
                (source,) = columns.sources(np.array([sample]))
                file = error.member or columns.key(sample)
                journal.reject(Reject(source, error.reason, type(error).__name__, file))
            journal.rejects.check(self.max_rejects, journal.inputs)
            progress.advance(samples)
            if self.spec is not None:
                yield Stored(files.images - len(made.sums), images)

    def _publish(self, journal: ConvertJournal, names: list[str], work: Path) -> Manifest:
        source = self.dataset.manifest
        journal.sync_rejects()
        rejects = journal.rejects_path.read_bytes()
        sums = write_sums(work, [name for name in CHECKED if name in names])
        names, earlier = [*names, SUMS], self._earlier_rejects()
        manifest = Manifest(
            shards=tuple(journal.parts),
            parts=(
                *source.parts,
                Contribution(
                    shards=len(journal.parts),
                    inputs=source.samples,
                    inputs_sha256=source.fingerprint,
                    rejected=journal.rejects.number,
                    rejects_bytes=len(rejects),
                    options=self.options,
                ),
            ),
            arrays=Arrays(
                files={name: (work / name).stat().st_size for name in sorted(names)},
                image=self.options["image"],
                encoder=self.options["tokenizer_and_template"],
                checksums_crc32=sums,
                frames=any(map(frame_of, self.dataset.columns.extensions)),
            ),
        )
        if not manifest.samples:
            raise PackError(f"{self.out}: none of {counted(source.samples, 'sample')} can be used")
        for name in (*names, *(part.index for part in journal.parts)):
            (work / name).replace(self.out / name)
        if content := earlier + rejects:
            replace_file(self.out / REJECTS, content)
        publish(self.out, manifest)
        return manifest

    def _earlier_rejects(self) -> bytes:
        """Return the rejects of the packs that made the shards; none where the file is missing."""
        folder = self.dataset.folder
        try:
            if isinstance(folder, RemoteFolder):
                return folder.read(REJECTS) if self.dataset.manifest.rejected else b""
            return (self.dataset.home / REJECTS).read_bytes()
        except (OSError, StoreError) as error:
            if isinstance(error.__cause__ or error, FileNotFoundError):
                return b""
            raise
