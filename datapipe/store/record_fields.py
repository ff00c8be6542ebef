"""Fields of the samples' records as columns: read out of the JSON members once, then kept."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.cpus import available_cpus
from datapipe.declared import Word, checked
from datapipe.errors import PlanError, SampleError, StoreError
from datapipe.index.dataset import Dataset, open_dataset
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.files.derived import cached_home, open_or_build
from datapipe.index.files.lock import lock_file
from datapipe.index.members import Kind
from datapipe.index.record_fields import (
    FIELDS,
    TYPES,
    FieldFiles,
    IndexedField,
    as_array,
    common_type,
    indexed_fields,
    value_at,
)
from datapipe.index.where.evaluate import UnknownColumn, Where, evaluate
from datapipe.index.where.values import ExtraColumns, written_field
from datapipe.progress import Progress
from datapipe.store.open import open_store
from datapipe.store.text_reader import TextChunk, TextReader
from datapipe.workers.threads import ThreadPool

logger = logging.getLogger(__name__)

_JSON: tuple[Kind, ...] = ("json",)
_LOCK = ".lock"
_MOST_THREADS = 4  # records are parsed with the interpreter's lock held
_SHOWN = 20  # fields in a message


@checked(PlanError)
def index_fields(
    shards: str | os.PathLike[str], fields: Word | Sequence[Word]
) -> dict[str, IndexedField]:
    """Read fields of the samples' JSON members, once, into columns that `where=` knows.

    A dataset that has grown is read from where it grew. A value that is missing or null, or NaN, is
    null. Numbers become int64, or float64 if one of them is not an integer.

    Args:
        shards: folder, list of tars or URL of a dataset.
        fields: names, or paths such as "meta.score"; several in a list, or separated by commas.

    Returns:
        For each field its `type` ("int64", "float64", "bool" or "string") and in how many samples
        it is `present`.

    Raises:
        PlanError: no sample has a field, or its values are lists, objects or of different types.
        IndexMismatch: there is no dataset.
        StoreError: a record is damaged, or a shard cannot be read.

    Examples:
        >>> import json
        >>> turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        >>> record = {"messages": turns, "score": 0.5, "meta": {"lang": "en"}}
        >>> _ = Path("chats.json").write_text(json.dumps([record]))
        >>> report = datapipe.pack_dataset("chats.json", "chats/")
        >>> datapipe.index_fields("chats/", ["score", "meta.lang"])["score"]
        IndexedField(type='float64', present=1)
        >>> len(datapipe.make_loader("chats/", batch_size=1, where="score > 0.1"))
        1
    """
    dataset, names = open_dataset(shards), parse_fields(fields)
    found = _open_or_read(dataset, names)
    return {name: found[name] for name in names}


def parse_fields(fields: str | Sequence[str]) -> list[str]:
    """Return the names of fields, of which a text has several, separated by commas."""
    names = fields.split(",") if isinstance(fields, str) else fields
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


def where_columns(dataset: Dataset, where: Where | None, extra: ExtraColumns) -> ExtraColumns:
    """Return `extra` and the fields that a dataset's `where` may name.

    A field that is not indexed yet is read out of all records if one of the first records has it,
    or if it was indexed before the dataset grew. Raises `UnknownColumn` if there is no such field,
    and `PlanError` as `index_fields`.
    """
    if where is None or not where.fields:
        return extra
    indexed, first = _indexed(dataset), set[str]()
    if missing := where.fields - indexed.keys():
        known = missing & indexed_fields(dataset.home / FIELDS, None).keys()  # before it grew
        if missing > known:
            first, present = _first_fields(dataset, missing)
            known |= present
        if known:
            indexed = _open_or_read(dataset, sorted(known))
    columns = dict(extra)
    for name, field in indexed.items():
        columns[written_field(name)] = _FieldColumn(dataset, name, field)
    try:
        evaluate(where, dataset.columns, columns, 0, 0)
    except UnknownColumn as error:
        unknown = [name if len(name) < 100 else "NAME" for name in sorted(missing - indexed.keys())]
        command = f"datapipe index {quote(dataset.title)} --fields {quote(','.join(unknown))}"
        raise UnknownColumn(
            f"{error}; indexed fields: {_listed(indexed)}; fields of the first records: "
            f"{_listed(first)}; if later ones have it, `{command}` adds it"
        ) from None
    return columns


def field_values(dataset: Dataset, sample: int) -> dict[str, Any]:
    """Return the values of all indexed fields of a sample, None where it has none."""
    return {
        name: _FieldColumn(dataset, name, field)(slice(sample, sample + 1))[0].as_py()
        for name, field in _indexed(dataset).items()
    }


class _FieldColumn:
    """Values of a field, read for a range of samples. What is damaged is read from the shard."""

    def __init__(self, dataset: Dataset, name: str, field: IndexedField) -> None:
        self._dataset, self._name, self._type = dataset, name, TYPES[field.type]
        self._of_shard = lru_cache(maxsize=2)(self._read)

    def __call__(self, span: slice) -> pa.Array:
        """Return the values of samples, null where there is none: one of `TYPES`, [n]."""
        edges = self._dataset.columns.shard_sample
        first = int(np.searchsorted(edges, span.start, side="right")) - 1
        last = int(np.searchsorted(edges, span.stop, side="left"))
        values = pa.chunked_array(map(self._of_shard, range(first, last)), self._type)
        start = span.start - int(edges[first])
        return values.slice(start, span.stop - span.start).combine_chunks()

    def _read(self, number: int) -> pa.Array:
        dataset, shard = self._dataset, self._dataset.manifest.shards[number]
        files = [FieldFiles(folder, self._name) for folder in _folders(dataset)]
        found = (values for each in files if (values := each.read(shard)) is not None)
        if (values := next(found, None)) is None:
            ((_, read),) = read_fields(dataset, [self._name], [number])
            values = read[self._name]
            with suppress(OSError):
                files[0].write(shard, values)
        return values.cast(self._type, safe=False)


def _folders(dataset: Dataset) -> tuple[Path, Path]:
    return dataset.home / FIELDS, cached_home(dataset.fingerprint) / FIELDS


def _indexed(dataset: Dataset) -> dict[str, IndexedField]:
    """Return the fields of a dataset that are indexed, in its own folder or in the cache."""
    here, cached = (indexed_fields(folder, dataset.fingerprint) for folder in _folders(dataset))
    return {**cached, **here}


def _open_or_read(dataset: Dataset, names: Sequence[str]) -> dict[str, IndexedField]:
    """Return the fields that are indexed, after reading those of `names` that are not.

    One process reads, others that share the folder wait for it. If it dies, another continues.
    """

    def opened(folder: Path) -> dict[str, IndexedField] | None:
        found = _indexed(dataset)
        return found if found.keys() >= set(names) else None

    def build(folder: Path) -> dict[str, IndexedField]:
        with lock_file(folder / _LOCK, "reads fields of records"):
            known = _indexed(dataset)
            files = [FieldFiles(folder, name) for name in names if name not in known]
            try:
                _build(dataset, files)
            except PlanError:  # there is no such field
                for each in files:
                    shutil.rmtree(each.folder, ignore_errors=True)
                with suppress(OSError):  # the folder has other fields
                    (folder / _LOCK).unlink()
                    folder.rmdir()
                raise
        return _indexed(dataset)

    return open_or_build(
        dataset.home, FIELDS, dataset.fingerprint, "fields", open_at=opened, build=build
    )


def _build(dataset: Dataset, files: Sequence[FieldFiles]) -> None:
    names = [each.name for each in files]
    shards = dataset.manifest.shards
    missing = [
        number
        for number, shard in enumerate(shards)
        if any(each.read(shard) is None for each in files)
    ]
    for number, values in read_fields(dataset, names, missing):
        for each in files:
            each.write(shards[number], values[each.name])
    edges = dataset.columns.shard_sample.tolist()
    for each in files:
        arrays = map(each.read, shards)
        keys = (partial(_key, dataset, start) for start in edges)
        kind, present = common_type(each.name, zip(arrays, keys, strict=False))
        if not present:
            fields, _ = _first_fields(dataset, ())
            raise PlanError(
                f"{dataset.title}: no sample has a field {each.name!r} in its JSON member; the "
                f"first records have {_listed(fields)}"
            )
        name = next(name for name, arrow in TYPES.items() if arrow == kind)
        each.publish(dataset.manifest, IndexedField(name, present))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:_SHOWN]) or "none"


def _key(dataset: Dataset, start: int, row: int) -> str:
    return dataset.columns.key(start + row)


def _first_fields(dataset: Dataset, names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the fields that the first records have, and which of `names` are among them."""
    fields, found = set[str](), set[str]()
    with closing(open_store(dataset)) as store:
        reader = TextReader(dataset, store, _JSON)
        shard = int(np.argmax(np.diff(dataset.columns.shard_sample) > 0))  # others are empty
        for part in reader.read(next(reader.chunks(shard))):
            record = None if isinstance(part, SampleError) else part.record
            fields |= set(record) if isinstance(record, Mapping) else set()
            found |= {n for n in names if value_at(record, n, n.split(".")) is not None}
    return fields, found | fields.intersection(names)


def read_fields(
    dataset: Dataset, names: Sequence[str], shards: Sequence[int]
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Yield the number of each shard, and the values of its samples by field."""
    paths = [(name, name.split(".")) for name in names]
    total = sum(dataset.manifest.shards[number].samples for number in shards)
    unread: list[str] = []

    def work(chunk: TextChunk) -> tuple[TextChunk, list[list[Any]]]:
        records: list[Any] = []
        for part in reader.read(chunk):
            if isinstance(part, SampleError):
                if part.reason == NOT_AS_INDEXED:
                    raise StoreError(f"{store.name(chunk.shard)}: {part}")
                unread.append(str(part))  # no JSON, which loaders tell of, too
            records.append(None if isinstance(part, SampleError) else part.record)
        return chunk, [[value_at(each, name, words) for each in records] for name, words in paths]

    with closing(open_store(dataset)) as store:
        reader = TextReader(dataset, store, _JSON)
        threads = min(available_cpus(), _MOST_THREADS)
        with (
            Progress("reading fields", unit="sample", total=total) as progress,
            closing(ThreadPool(work, threads, name="datapipe-fields")) as pool,
        ):
            values: list[list[Any]] = [[] for _ in names]
            for chunk, read in pool.run(each for shard in shards for each in reader.chunks(shard)):
                for column, more in zip(values, read, strict=True):
                    column += more
                progress.advance(chunk.stop - chunk.start)
                if chunk.last:
                    key = partial(_key, dataset, chunk.stop - len(values[0]))
                    yield chunk.shard, {n: as_array(n, values.pop(0), key) for n in names}
                    values = [[] for _ in names]
    if unread:
        told = "records that cannot be read, and have no fields: %s, such as %s"
        logger.warning(told, f"{len(unread):,}", unread[0])
