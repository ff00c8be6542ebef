"""Values of a field of the samples' records, kept beside the index: a file for each shard.

A file is named after the shard's index and ends with a checksum, so that an interrupted run
continues with the shards that are missing, and a dataset that has grown reads the new ones alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.index.files.derived import read_summed, write_summed
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import Manifest, Shard, replace_file

logger = logging.getLogger(__name__)

FIELDS = "fields"
"""Folder beside the index, with a folder for each field."""

VERSION = 1
"""Version of the files. Raise it when their content changes."""

ABOUT = "field.json"
"""File in a field's folder that names and describes it."""

_SUFFIX = ".arrow"
_WORDS = ("boolean", "number", "number", "string", "list", "object")
_NAMES = dict(zip((bool, int, float, str, list, dict), _WORDS, strict=True))

_ARROW = (pa.bool_(), pa.int64(), pa.float64(), pa.large_string())
TYPES = dict(zip(("bool", "int64", "float64", "string"), _ARROW, strict=True))
"""Arrow's types of fields by their names in `field.json`."""


class IndexedField(NamedTuple):
    """Type of a field of the samples' records, and how many samples have it.

    Examples:
        >>> IndexedField("float64", 7).type
        'float64'
    """

    type: str  # "bool", "int64", "float64" or "string"
    present: int


class FieldFiles:
    """Files of one field, in a folder of its own inside `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder / sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]

    def read(self, shard: Shard) -> pa.Array | None:
        """Return the values of a shard's samples; None if they are missing, torn or damaged."""
        if (body := read_summed(self.path(shard))) is None:
            return None
        with pa.ipc.open_stream(body) as stream:
            table = stream.read_all()
        is_current = table.column_names == [f"{VERSION}"] and table.num_rows == shard.samples
        return table.column(0).combine_chunks() if is_current else None

    def write(self, shard: Shard, values: pa.Array) -> None:
        table = pa.table({f"{VERSION}": values})
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
        write_summed(self.path(shard), sink.getvalue().to_pybytes())

    def publish(self, manifest: Manifest, field: IndexedField) -> None:
        """Write down that all shards are there, and remove the files of others."""
        about = {"version": VERSION, "name": self.name, "fingerprint": manifest.fingerprint}
        content = seal({**about, **field._asdict()}).encode()
        replace_file(self.folder / ABOUT, content, durable=False)
        current = {self.path(shard) for shard in manifest.shards}
        for path in set(self.folder.glob(f"*{_SUFFIX}")) - current:
            path.unlink(missing_ok=True)

    def path(self, shard: Shard) -> Path:
        return self.folder / f"{shard.index_sha256[:32]}{_SUFFIX}"


def indexed_fields(folder: Path, fingerprint: str | None) -> dict[str, IndexedField]:
    """Return the fields whose values are in `folder`, by name; of any content with None."""
    found = {}
    for path in sorted(folder.glob(f"*/{ABOUT}")):
        try:
            about = unseal(path.read_bytes())
            if about["version"] == VERSION and fingerprint in (about["fingerprint"], None):
                kind = next(name for name in TYPES if name == about["type"])
                found[str(about["name"])] = IndexedField(kind, int(about["present"]))
        except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
            logger.warning("%s is damaged (%s)", path, error)
    return found


def value_at(record: Any, name: str, words: Sequence[str]) -> Any:
    """Return a field of a record by its name, or, word by word, by a path such as `meta.score`.

    None if the record does not have it.
    """
    if not isinstance(record, Mapping):
        return None
    if name in record:
        return record[name]
    for word in words:
        record = record.get(word) if isinstance(record, Mapping) else None
    return record


def as_array(name: str, values: list[Any], key: Callable[[int], str]) -> pa.Array:
    """Return values of a field as an array; NaN is null. `key` names the sample of a value.

    Raises `PlanError` for values of several types, and for lists and objects.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds - {bool, int, float, str} or len({_NAMES[kind] for kind in kinds}) > 1:
        raise _of_other_types(name, [(value, key(row)) for row, value in enumerate(values)])
    if str in kinds:
        # Half characters, which UTF-8 does not have, become question marks.
        values = [value and value.encode(errors="replace").decode() for value in values]
        array = pa.array(values, pa.large_string())
    elif float in kinds or any(value is not None and abs(value) >= 2**63 for value in values):
        # By way of texts, which are infinite and no error where a number is too large.
        values = [None if value is None else float(str(value)) for value in values]
        array = pa.array(values, pa.float64(), from_pandas=True)
    else:
        array = pa.array(values, pa.int64() if int in kinds else pa.bool_())
    return pa.nulls(len(array)) if array.null_count == len(array) else array


def common_type(
    name: str, arrays: Iterable[tuple[pa.Array, Callable[[int], str]]]
) -> tuple[pa.DataType, int]:
    """Return the type that all arrays of a field fit, and how many values are not null.

    Each array comes with `key` as `as_array` takes it.

    Raises `PlanError` if the types differ.
    """
    seen: dict[pa.DataType, tuple[Any, str]] = {}
    present = 0
    for array, key in arrays:
        present += len(array) - array.null_count
        if array.type != pa.null() and array.type not in seen:
            row = pc.index(array.is_valid(), True).as_py()
            seen[array.type] = array[row].as_py(), key(row)
    if set(seen) == {pa.int64(), pa.float64()}:
        return pa.float64(), present
    if len(seen) > 1:
        raise _of_other_types(name, seen.values())
    return next(iter(seen), pa.null()), present


def _of_other_types(name: str, values: Iterable[tuple[Any, str]]) -> PlanError:
    """Return the error of a field with values that `where` cannot compare, and their samples."""
    examples: dict[str, str] = {}
    for value, key in values:
        if value is not None and (kind := _NAMES[type(value)]) not in examples:
            examples[kind] = f"{shorten(value)} ({kind}, sample {key})"
    return PlanError(
        f"field {name!r} holds {' and '.join(examples.values())}; where= knows fields that are all "
        "numbers, all booleans or all strings: pack the records with one of these types, or filter "
        "by another field"
    )
