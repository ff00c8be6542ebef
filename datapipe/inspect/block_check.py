"""Check of `.npy` files by the checksums of their blocks: columns, token counts, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.index.columns import COLUMNS, DTYPES, Columns, columns_in
from datapipe.index.files.block_checksums import BLOCK, SUMS, sums_of
from datapipe.index.files.crc32 import crc32, prefix_sums
from datapipe.index.files.npy import map_npy
from datapipe.index.files.sealed_json import unseal
from datapipe.index.manifest import Manifest
from datapipe.index.tokens import columns as tokens
from datapipe.inspect.findings import Finding

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


def check_columns(home: Path, manifest: Manifest) -> tuple[Columns | None, list[Finding]]:
    """Return the columns of a dataset, None if they are missing or unusable, and their damage.

    Columns of another manifest or version do not count as damage: new ones are made when needed.
    """
    found = _check_derived(home / COLUMNS, *_OF_COLUMNS, manifest)
    if found or not (home / COLUMNS).is_dir():
        return None, found
    return columns_in(home / COLUMNS, manifest), found


def check_tokens(home: Path, manifest: Manifest) -> list[Finding]:
    """Return the damage of token counts, of any tokenizer and template.

    Columns with fewer frames of videos are compared too; they are as easy to rebuild.
    """
    found: list[Finding] = []
    for folder in sorted(home.glob(f"{COLUMNS}-*-frames")):
        found += _check_derived(folder, *_OF_COLUMNS, manifest)
    for folder in sorted(home.glob("tokens-*")):
        found += _check_derived(folder, tokens.ABOUT, list(tokens.FILES), manifest)
    return found


def _check_derived(folder: Path, name: str, files: list[str], manifest: Manifest) -> list[Finding]:
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
