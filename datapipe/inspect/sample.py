"""`inspect_sample`: one sample of a dataset, its bytes compared and its columns looked up."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from PIL import Image

from datapipe.declared import checked, shorten
from datapipe.errors import PlanError
from datapipe.index.columns import find_keys
from datapipe.index.dataset import Dataset, open_dataset
from datapipe.index.files.npy import HEADER
from datapipe.index.members import SampleParts, member_kind
from datapipe.index.tokens.columns import counted_tokens
from datapipe.index.where.values import NAMES, Span
from datapipe.inspect.shard_check import OTHER_BYTES, content_problem
from datapipe.store.arrays import IMAGES, open_images
from datapipe.store.open import open_store
from datapipe.store.record_fields import field_values
from datapipe.text.sample_text import sample_text

_SHOWN = 3  # keys in a message


@dataclass(frozen=True, kw_only=True)
class InspectedMember:
    """Member of an inspected sample.

    Examples:
        >>> image, text = datapipe.inspect_sample("shards/", 0).members
        >>> text.name, text.file, text.size, text.problem
        ('000000000.txt', 'shard-000000.tar', 12, '')
    """

    name: str
    file: str  # that holds it, relative to the dataset's folder
    # `offset`, `size`: bytes of that file
    offset: int
    size: int
    crc32: int
    problem: str = ""  # why it cannot be used; "" if its bytes have this checksum and can be read


@dataclass(frozen=True, kw_only=True)
class InspectedSample:
    """Result of `inspect_sample`.

    Examples:
        >>> sample = datapipe.inspect_sample("shards/", 3)
        >>> sample.key, [member.name for member in sample.members]
        ('000000003', ['000000003.jpg', '000000003.txt'])
        >>> sample.columns["width"], sample.columns["images"]
        (43, 1)
    """

    number: int
    key: str
    source: str  # raw input that it was packed from
    shard: str  # name of its shard; of arrays, of the file of texts
    members: tuple[InspectedMember, ...]
    text: str  # as batches without a tokenizer have it
    record: Any  # of its JSON member; None without one
    columns: dict[str, Any]  # those that `where=` knows, its fields and counted tokens included
    images: tuple[bytes, ...] = field(repr=False)  # files as they are stored; PNG of arrays


@checked(PlanError)
def inspect_sample(dataset: str | PathLike[str], which: int | str) -> InspectedSample:
    """Return one sample of a dataset: members, text, record, columns and images.

    Args:
        dataset: folder or URL of shards, folder of arrays, or tars of someone else.
        which: number of the sample, from 0, or its key.

    Raises:
        PlanError: no sample has this number or key.
        IndexMismatch: there is no finished dataset.
        StoreError: its shard cannot be read. Damaged members do not raise; their `problem` says so.

    Examples:
        >>> datapipe.inspect_sample("shards/", "000000003").text
        'photograph 3'
    """
    opened = open_dataset(dataset)
    number = _number(opened, which)
    columns, shard = opened.columns, opened.columns.shard(number)
    parts, members, images = SampleParts(), list[InspectedMember](), list[bytes]()
    origin = 0 if opened.manifest.arrays is None else HEADER
    with closing(open_store(opened)) as store:
        held = columns.members(number)
        for member, data in zip(held, store.read(shard, held), strict=True):
            kind = member_kind(member.ext)
            problem = "" if store.verify(member, data) else OTHER_BYTES
            if not (problem := problem or content_problem(kind, data)):
                parts.add(member, data)
            if kind == "image":
                images.append(bytes(data))
            members.append(
                InspectedMember(
                    name=f"{columns.key(number)}.{member.ext}",
                    file=store.name(shard),
                    offset=member.offset + origin,
                    size=member.size,
                    crc32=member.crc32,
                    problem=problem,
                )
            )
        for stored, picture in _of_arrays(opened, number):
            members.append(stored)
            images.append(picture)
        span = Span(columns, {}, number, number + 1)
        values = {name: span.column(name)[0].as_py() for name in NAMES}
        for tokens in counted_tokens(opened.home, opened.manifest):
            for name in ("text_tokens", "label_tokens"):
                values[f"{name} ({tokens.folder.name})"] = int(getattr(tokens, name)[number])
        key, source, _ = (values.pop(name) for name in ("key", "source", "shard"))
        return InspectedSample(
            number=number,
            key=key,
            source=source,
            shard=store.name(shard),
            members=tuple(members),
            text=sample_text(parts.caption, parts.record),
            record=parts.record,
            columns={**values, **field_values(opened, number)},
            images=tuple(images),
        )


def _number(dataset: Dataset, which: int | str) -> int:
    if not len(dataset):
        raise PlanError(f"{dataset.title} has no samples to show; give a dataset that has some")
    if isinstance(which, str):
        if (found := find_keys(dataset.columns, [which]).get(which)) is None:
            keys = dataset.columns.keys(np.arange(min(_SHOWN, len(dataset))))
            raise PlanError(
                f"{dataset.title}: no sample has the key {shorten(which)}; its keys are "
                f"{', '.join(map(repr, keys))}{', ...' if len(keys) < len(dataset) else ''}"
            )
        return found
    if not 0 <= which < len(dataset):
        raise PlanError(
            f"{dataset.title} has {len(dataset):,} samples, numbered from 0, and none with the "
            f"number {which}; give a lower one, or a key as text"
        )
    return which


def _of_arrays(dataset: Dataset, number: int) -> Iterator[tuple[InspectedMember, bytes]]:
    """Yield the images of a sample of arrays, each as a PNG too."""
    if (arrays := open_images(dataset)) is None:
        return
    for image in range(*dataset.columns.sample_image[[number, number + 1]].tolist()):
        start = image * arrays.size
        pixels = arrays.data[start : start + arrays.size]
        stored = InspectedMember(
            name=f"image {image}",
            file=IMAGES,
            offset=start + HEADER,
            size=arrays.size,
            crc32=int(arrays.sums[image]),
            problem="" if arrays.is_whole(image) else OTHER_BYTES,
        )
        png = io.BytesIO()
        Image.fromarray(pixels.reshape(arrays.height, arrays.width, 3)).save(png, "PNG")
        yield stored, png.getvalue()
