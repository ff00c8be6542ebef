"""Check of what is derived from the index of a dataset, and of files with checksums of blocks.

Columns, token counts, fields of the samples' records; arrays are checked by blocks, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.index import record_fields
from datapipe.index.columns import COLUMNS, DTYPES, Columns, columns_in
from datapipe.index.dataset import Dataset
from datapipe.index.files.block_checksums import BLOCK, SUMS, sums_of
from datapipe.index.files.crc32 import crc32, prefix_sums
from datapipe.index.files.npy import map_npy
from datapipe.index.files.sealed_json import unseal
from datapipe.index.manifest import Manifest
from datapipe.index.record_fields import FIELDS, FieldFiles
from datapipe.index.tokens import columns as tokens
from datapipe.inspect.findings import Finding
from datapipe.store.record_fields import read_fields

_AGAIN = "is damaged; opening the dataset rebuilds it"
_OF_COLUMNS = (f"{COLUMNS}.json", [f"{name}.npy" for name in DTYPES])


def check_blocks(folder: Path, names: Iterable[str], sums: int, prefix: str) -> Iterator[Finding]:
    """Yield the damage of files whose checksums `write_sums` wrote; `sums` is what it returned.

    `prefix` is put before the names of the files.
    """
    try:
        expected: Any = map_npy(folder / SUMS, "<u4")
    except (OSError, ValueError):
        yield Finding(file=prefix + SUMS, problem="is missing or damaged")
        return
    if crc32(expected.data) != sums:
        yield Finding(file=prefix + SUMS, problem="is damaged")
        return
    at = 0
    for name in names:
        try:
            size = (folder / name).stat().st_size
            found = np.concatenate(list(sums_of(folder / name)))
        except (OSError, ValueError):  # ValueError: it is empty
            yield Finding(file=prefix + name, problem="is missing or empty")
            return  # where the checksums of the next file begin is unknown
        stated = expected[at : at + len(found)]
        at += len(found)
        for block in np.flatnonzero(found[: len(stated)] != stated).tolist():
            start = block * BLOCK
            stop = min(start + BLOCK, size)
            yield Finding(file=prefix + name, problem="is damaged", start=start, stop=stop)
    if at != len(expected):
        yield Finding(file=prefix + SUMS, problem="has checksums for files of other sizes")


def check_derived(home: Path, manifest: Manifest) -> tuple[Columns | None, list[Finding]]:
    """Return the columns of a dataset, and the damage of all that is derived from its index.

    The columns are None if they are missing or unusable. What was derived from another manifest, or
    by another version, does not count as damage: it is made again when needed.
    """
    found = _check_folder(home / COLUMNS, *_OF_COLUMNS, manifest)
    columns = None if found else columns_in(home / COLUMNS, manifest)
    for folder in sorted(home.glob(f"{COLUMNS}-*-frames")):
        found += _check_folder(folder, *_OF_COLUMNS, manifest)
    for folder in sorted(home.glob("tokens-*")):
        found += _check_folder(folder, tokens.ABOUT, list(tokens.FILES), manifest)
    return columns, found + _check_fields(home, manifest)


def _check_folder(folder: Path, name: str, files: list[str], manifest: Manifest) -> list[Finding]:
    prefix = f"{folder.name}/"
    if not folder.is_dir():
        return []
    try:
        about = unseal((folder / name).read_bytes())
        if about["fingerprint"] != manifest.fingerprint:
            return []  # of the dataset as it was before
        sums, sizes, compared = about["checksums_crc32"], about["sizes"], about["crc32_of"]
    except (OSError, ValueError, LookupError):
        return [Finding(file=prefix + name, problem=_AGAIN)]
    found = []
    for file, size in sizes.items():
        path = folder / file
        if not path.exists() or path.stat().st_size != size:
            found.append(Finding(file=prefix + file, problem=f"had {size:,} bytes, and {_AGAIN}"))
        elif file in compared and prefix_sums(path, [size]) != [compared[file]]:
            found.append(Finding(file=prefix + file, problem=_AGAIN))
    if not found:
        damage = check_blocks(folder, files, sums, prefix)
        found = [replace(finding, problem=_AGAIN) for finding in damage]
    return found


def _check_fields(home: Path, manifest: Manifest) -> list[Finding]:
    """Return the damage of fields that checksums and numbers of samples show."""
    found = []
    for folder in sorted(path for path in (home / FIELDS).glob("*") if path.is_dir()):
        if _field_name(folder, manifest) == "":
            name = (folder / record_fields.ABOUT).relative_to(home).as_posix()
            problem = "is damaged; `datapipe index --fields` rebuilds it"
            found.append(Finding(file=name, problem=problem))
    problem = "is missing or damaged; it is rebuilt when `where=` names the field"
    for field in _current_fields(home, manifest):
        for shard in manifest.shards:
            if field.read(shard) is None:
                name = field.path(shard).relative_to(home).as_posix()
                found.append(Finding(file=name, problem=problem))
    return found


def check_field_values(dataset: Dataset, shards: Sequence[int]) -> Iterator[Finding]:
    """Yield the columns of fields that differ from the records of these shards, which are whole."""
    current = _current_fields(dataset.home, dataset.manifest)
    if not current or not shards:
        return
    for number, values in read_fields(dataset, [field.name for field in current], shards):
        shard = dataset.manifest.shards[number]
        for field in current:
            stored = field.read(shard)
            if stored is not None and not stored.equals(values[field.name]):
                problem = (
                    f"field {field.name!r} differs from the records of {shard.name}; remove the "
                    "file, and it is rebuilt"
                )
                name = field.path(shard).relative_to(dataset.home).as_posix()
                yield Finding(file=name, problem=problem)


def _current_fields(home: Path, manifest: Manifest) -> list[FieldFiles]:
    """Return the fields of this manifest; those of an earlier one are extended when next used."""
    names = (_field_name(folder, manifest) for folder in sorted((home / FIELDS).glob("*")))
    return [FieldFiles(home / FIELDS, name) for name in names if name]


def _field_name(folder: Path, manifest: Manifest) -> str | None:
    """Return the name of a field; None for one of an earlier manifest, "" if it is damaged."""
    try:
        about = unseal((folder / record_fields.ABOUT).read_bytes())
        return str(about["name"]) if about["fingerprint"] == manifest.fingerprint else None
    except FileNotFoundError:  # as a read that was interrupted leaves it
        return None
    except (OSError, ValueError, LookupError):
        return ""
