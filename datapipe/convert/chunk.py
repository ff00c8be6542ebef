"""Chunks of samples of a shard, as they will be in arrays; workers make them in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from datapipe.array_types import Int32, UInt8
from datapipe.decode.image import check_indexed
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform
from datapipe.errors import DecodeError, MissingMember, SampleError
from datapipe.index.dataset import Dataset
from datapipe.index.files.crc32 import NOT_AS_INDEXED, crc32
from datapipe.index.images.header import is_stored_image
from datapipe.index.members import SampleParts, wanted_members
from datapipe.index.parquet import checked_index, to_table
from datapipe.index.rows import ImageSize, Member, Row, Rows
from datapipe.report.table import counted
from datapipe.store.open import open_store
from datapipe.store.protocol import Store
from datapipe.text.encode import SampleText, TextEncoder
from datapipe.text.truncate import IGNORE
from datapipe.torch_threads import work_alone
from datapipe.workers.ray_tasks import Stored


@dataclass(slots=True)
class ArrayChunk:
    """The samples of a chunk that can be used, as arrays will hold them, apart from pixels."""

    samples: list[int] = field(default_factory=list)  # their numbers, in order
    counts: list[int] = field(default_factory=list)  # images of each
    # `sums`, `placements`: checksum of each image, and where its points went
    sums: list[int] = field(default_factory=list)
    placements: list[tuple[float, ...]] = field(default_factory=list)
    # Members with texts of each sample, and their bytes
    texts: list[list[tuple[Member, bytes]]] = field(default_factory=list)
    # `tokens`, `labels`: of each sample; none without an encoder, or where its text is refused
    tokens: list[Int32] = field(default_factory=list)
    labels: list[Int32] = field(default_factory=list)
    # Samples that cannot be used, and why
    refused: list[tuple[int, SampleError]] = field(default_factory=list)


class ChunkMaker:
    """Reads, decodes and encodes samples of a dataset; from any thread.

    Without `spec` images are left out, without `encoder` tokens.
    """

    def __init__(
        self, dataset: Dataset, store: Store, spec: ImageSpec | None, encoder: TextEncoder | None
    ) -> None:
        self.columns, self.store, self.encoder = dataset.columns, store, encoder
        self.transform = None if spec is None else make_transform(spec)

    def make(self, samples: range) -> Stored[ArrayChunk]:
        """Return some samples of one shard, with their images.

        Images are uint8 [I, height, width, 3], or [0] where they are left out.
        """
        columns, shard = self.columns, self.columns.shard(samples[0])
        first, last = columns.sample_image[samples[0]], columns.sample_image[samples[-1] + 1]
        shape: tuple[int, ...] = (0,)
        if self.transform is not None:
            shape = int(last - first), self.transform.spec.height, self.transform.spec.width, 3
        images, made = np.empty(shape, np.uint8), ArrayChunk()
        texts: list[SampleText] = []
        wanted = []
        for sample in samples:
            members = columns.members(sample)
            wanted.append(wanted_members(members, 0 if self.transform is None else len(members)))
        # A remote store reads all of them at once, on many connections.
        fetch = self.store.begin([(shard, members) for members in wanted])
        for number, (sample, wants) in enumerate(zip(samples, wanted, strict=True)):
            before = len(made.sums)
            try:
                if fetch is None:
                    contents = self.store.read(shard, wants)
                else:
                    contents = fetch.contents(number)
                text, held = self._sample(sample, zip(wants, contents, strict=True), made, images)
            except SampleError as error:
                del made.sums[before:], made.placements[before:]
                made.refused.append((sample, error))
                continue
            made.samples.append(sample)
            made.counts.append(text.images)
            made.texts.append(held)
            texts.append(text)
        if self.encoder is not None and texts:
            for result in self.encoder.encode(texts):
                tokens = labels = np.zeros(0, np.int32)  # if it is refused, as its counts say later
                if not isinstance(result, SampleError):
                    tokens, trained = result.tokens, result.trained
                    labels = np.where(trained, tokens, IGNORE).astype(np.int32)
                made.tokens.append(tokens)
                made.labels.append(labels)
        return Stored(made, images[: len(made.sums)])

    def _sample(
        self,
        sample: int,
        members: Iterable[tuple[Member, memoryview]],
        made: ArrayChunk,
        pixels: UInt8,
    ) -> tuple[SampleText, list[tuple[Member, bytes]]]:
        """Return the texts of a sample, and put its images behind those of the samples before."""
        key = self.columns.key(sample)
        images = range(*self.columns.sample_image[sample : sample + 2].tolist())
        texts: list[tuple[Member, bytes]] = []
        parts = SampleParts()
        done = 0
        for member, data in members:
            try:
                if not self.store.verify(member, data):
                    raise DecodeError(NOT_AS_INDEXED)
                if is_stored_image(member.ext):
                    if done == len(images):
                        raise MissingMember("there are more images than the index says")
                    self._place(images[done], data, made, pixels)
                    done += 1
                    continue
                parts.add(member, data)
                content = bytes(data)
                texts.append((member._replace(crc32=crc32(content)), content))
            except SampleError as error:
                name = f"{key}.{member.ext}"
                raise type(error)(error.reason, key=key, member=name) from error
        if self.transform is not None and done != len(images):
            raise MissingMember(
                f"{counted(done, 'image')} found, the index says {len(images)}", key=key
            )
        return SampleText(parts.caption, parts.record, len(images)), texts

    def _place(self, number: int, data: memoryview, made: ArrayChunk, pixels: UInt8) -> None:
        assert self.transform is not None
        width, height = self.columns.image_width[number], self.columns.image_height[number]
        image = self.transform.decode(data)
        check_indexed((image.width, image.height), (int(width), int(height)))
        out = pixels[len(made.sums)]
        placed = self.transform.place(image, out.transpose(2, 0, 1)[None])
        made.sums.append(crc32(out))
        made.placements.append(placed)


def chunk_maker(
    opener: Callable[[], Dataset], spec: ImageSpec | None, encoder: TextEncoder | None
) -> Callable[[range], Stored[ArrayChunk]]:
    """Return the function of a task on a node, which must see the same dataset."""
    work_alone()
    dataset = opener()
    return ChunkMaker(dataset, open_store(dataset), spec, encoder).make


class PartRows:
    """Rows of the samples of one shard that made it into arrays, with texts as only members."""

    def __init__(self, dataset: Dataset, shard: int, first: int) -> None:
        self._first = first
        table = checked_index(dataset.home, dataset.manifest.shards[shard])
        names = ("key", "source", "text_bytes", "image_width", "image_height", "orientation")
        self._columns = {name: table[name].to_pylist() for name in names}
        self._rows = Rows()
        self.text_bytes = 0

    def add(self, made: ArrayChunk, offset: int) -> None:
        """Add samples whose texts begin at `offset`."""
        for sample, texts in zip(made.samples, made.texts, strict=True):
            key, source, text_bytes, *sizes = (
                column[sample - self._first] for column in self._columns.values()
            )
            members = []
            for member, data in texts:
                members.append(Member(member.ext, offset, len(data), member.crc32))
                offset += len(data)
                self.text_bytes += len(data)
            images = [ImageSize(*size) for size in zip(*sizes, strict=True)]
            self._rows.append(Row(key, members, images, text_bytes, source))

    def table(self) -> pa.Table:
        return to_table(self._rows)
