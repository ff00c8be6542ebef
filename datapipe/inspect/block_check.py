"""Check of `.npy` files by the checksums of their blocks: columns, token counts, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.errors import IndexMismatch
from datapipe.index.columns import COLUMNS, DTYPES
from datapipe.index.files.block_checksums import BLOCK, SUMS
from datapipe.index.files.crc32 import crc32, prefix_sums
from datapipe.index.files.npy import map_npy, map_plain
from datapipe.index.files.sealed_json import unseal
from datapipe.index.manifest import Manifest
from datapipe.index.tokens import columns as tokens
from datapipe.inspect.findings import Finding

_AGAIN = "is damaged; it is made again when the dataset is opened"


def check_blocks(folder: Path, names: Iterable[str], sums: int, prefix: str) -> Iterator[Finding]:
    """Yield the damage of files whose checksums `write_sums` wrote; `sums` is what it returned.

    `prefix` stands before the names of the files.
    """
    try:
        expected: Any = map_plain(folder / SUMS, "<u4")
    except (OSError, ValueError):
        yield Finding(file=prefix + SUMS, problem="is missing or damaged")
        return
    if crc32(expected.data) != sums:
        yield Finding(file=prefix + SUMS, problem="is damaged")
        return
    at = 0
    for name in names:
        try:
            data = np.memmap(folder / name, np.uint8, "r")
        except (OSError, ValueError):  # ValueError: it is empty
            yield Finding(file=prefix + name, problem="is missing or empty")
            return  # where the checksums of the next file begin is unknown
        blocks = range(0, len(data), BLOCK)
        found = np.array([crc32(data[start : start + BLOCK]) for start in blocks], np.uint32)
        stated = expected[at : at + len(found)]
        at += len(found)
        for block in np.flatnonzero(found[: len(stated)] != stated).tolist():
            start = block * BLOCK
            stop = min(start + BLOCK, len(data))
            yield Finding(file=prefix + name, problem="is damaged", start=start, stop=stop)
    if at != len(expected):
        yield Finding(file=prefix + SUMS, problem="has checksums of files of other sizes")


def check_columns(home: Path, manifest: Manifest) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the arrays of `columns/` with the extensions of members, None if they are unusable.

    Columns that are missing, or of another version, are no damage: they are made when needed.
    """
    names = [f"{name}.npy" for name in DTYPES]
    about, findings = _check_derived(home / COLUMNS, f"{COLUMNS}.json", names, manifest)
    if about is None or findings:
        return None, findings
    arrays: dict[str, Any] = {"extensions": about["extensions"]}
    for name, dtype in DTYPES.items():
        arrays[name] = map_npy(home / COLUMNS / f"{name}.npy", dtype)
    edges = arrays["sample_key"]
    return (arrays if len(edges) == manifest.samples + 1 else None), findings


def check_tokens(home: Path, manifest: Manifest) -> list[Finding]:
    """Return the damage of token counts, of any tokenizer and template."""
    found: list[Finding] = []
    for folder in sorted(home.glob("tokens-*")):
        found += _check_derived(folder, tokens.ABOUT, list(tokens.FILES), manifest)[1]
    return found


def _check_derived(
    folder: Path, name: str, files: list[str], manifest: Manifest
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the description of a folder of derived files, and their damage."""
    prefix = f"{folder.name}/"
    if not folder.is_dir():
        return None, []
    try:
        about = unseal((folder / name).read_bytes())
        if about["fingerprint"] != manifest.fingerprint:
            return None, []  # of the dataset as it was before
        sums, sizes, compared = about["checksums_crc32"], about["sizes"], about["crc32_of"]
    except (OSError, ValueError, LookupError):
        return None, [Finding(file=prefix + name, problem=_AGAIN)]
    found = []
    for file, size in sizes.items():
        path = folder / file
        if not path.exists() or path.stat().st_size != size:
            found.append(Finding(file=prefix + file, problem=f"had {size:,} bytes, and {_AGAIN}"))
        elif file in compared and prefix_sums(path, [size]) != [compared[file]]:
            found.append(Finding(file=prefix + file, problem=_AGAIN))
    if not found:
        try:
            for damage in check_blocks(folder, files, sums, prefix):
                found.append(replace(damage, problem=_AGAIN))
        except IndexMismatch:
            found.append(Finding(file=prefix + name, problem=_AGAIN))
    return about, found
