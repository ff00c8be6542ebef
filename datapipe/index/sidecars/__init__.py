"""Index files that other readers of tar shards want beside them.

They are made from the manifest and the shards' Parquet indexes; of foreign tars, headers are read
too. Equal datasets give equal bytes, and writing them again changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.errors import IndexMismatch
from datapipe.index.manifest import Manifest
from datapipe.index.parquet import checked_index
from datapipe.index.sidecars.readers import DaliIndexes, EnergonMetadata, Sidecars, WidsList
from datapipe.index.tar.grouping import is_no_data, split_name
from datapipe.index.tar.headers import TarScanner

_SIDECARS: dict[str, type[Sidecars]] = {
    "dali": DaliIndexes,
    "wids": WidsList,
    "energon": EnergonMetadata,
}
KINDS = tuple(_SIDECARS)
"""Readers whose sidecars can be written."""


def parse_sidecars(text: str) -> tuple[str, ...]:
    """Return the names in a list such as "wids,dali", sorted; `IndexMismatch` for unknown ones."""
    names = sorted({name.strip() for name in text.split(",")} - {""})
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise IndexMismatch(
            f"sidecars are not known for {', '.join(map(repr, unknown))}; choose from "
            f"{', '.join(KINDS)}"
        )
    return tuple(names)


def write_sidecars(
    folder: Path, manifest: Manifest, kinds: Iterable[str], *, home: Path | None = None
) -> list[Path]:
    """Write sidecars for the shards in `folder`; return the files written.

    Memory stays at one shard's index. A file appears whole or not at all, those of the whole
    dataset last. What a person may have set (Energon's `dataset.yaml` and `split.yaml`) is kept.
    `home` has the Parquet indexes; by default it is `folder`.

    Raises `IndexMismatch` if an index is missing or not that of the manifest, a reader cannot be
    told of a member, `folder` cannot be written, or it holds a view, whose sidecars would replace
    those of its source; `StoreError` if a foreign tar is missing or damaged.
    """
    if kinds and manifest.is_view:
        raise IndexMismatch(
            f"{folder} is a view, and sidecars would describe the shards of its source as if they "
            "had no other samples; make shards of it with `datapipe select`, without --view"
        )
    sidecars = [_SIDECARS[kind](folder) for kind in sorted(set(kinds))]
    written = []
    try:
        for shard in manifest.shards if sidecars else ():
            table = checked_index(home or folder, shard).combine_chunks()
            lacking = ""
            if manifest.foreign:
                table, lacking = _as_in_tar(folder / shard.name, table)
                table = table.combine_chunks()
            for sidecar in sidecars:
                if lacking and sidecar.reads_on:
                    raise IndexMismatch(
                        f"{shard.name}: {lacking} is left out of the index, and {sidecar.reads_on} "
                        "reads a tar from front to back and would see it: repack the shards with "
                        "`datapipe pack`, which writes only members that are indexed"
                    )
                written += sidecar.add(shard, table)
        for sidecar in sidecars:
            written += sidecar.finish()
    except OSError as error:
        raise IndexMismatch(
            f"{folder}: sidecars cannot be written ({error.strerror or error}), and their readers "
            "look for them beside the shards; make the folder writable, or link the shards into "
            "a writable folder and index that"
        ) from error
    return written


def _as_in_tar(path: Path, table: pa.Table) -> tuple[pa.Table, str]:
    """Return an index with the extensions that its tar has, and a member that it lacks.

    The index of a JPEG called `0.img` has `img.jpg`, and it lacks members that were left out. Other
    readers see the tar as it is. The member is the first of a sample; "" without any. Only
    headers of the tar are read; StoreError if it is missing, damaged or cut off.
    """
    listed = set(pc.list_flatten(table["offset"]).to_pylist())
    exts: dict[int, set[str]] = defaultdict(set)  # a hard link has the offset of another
    lacking = ""
    with TarScanner(path) as tar:
        for member in tar:
            if (parts := split_name(member.name)) is None or is_no_data(member.name):
                continue
            exts[member.offset].add(parts[1])
            if member.offset not in listed:
                lacking = lacking or member.name
    named = [
        [
            ext if ext in exts[offset] else ext.rpartition(".")[0]
            for ext, offset in zip(of_sample, offsets, strict=True)
        ]
        for of_sample, offsets in zip(
            table["ext"].to_pylist(), table["offset"].to_pylist(), strict=True
        )
    ]
    number = table.schema.get_field_index("ext")
    field = table.schema.field(number)
    return table.set_column(number, field, pa.array(named, field.type)), lacking


def present_sidecars(folder: Path) -> tuple[str, ...]:
    """Return the kinds of sidecars that `folder` has."""
    marks = {
        "dali": (path for path in folder.rglob("*.idx") if not path.name.endswith(".tar.idx")),
        "wids": folder.glob("shardindex.json"),
        "energon": folder.glob(".nv-meta/.info.json"),
    }
    return tuple(kind for kind in KINDS if any(True for _ in marks[kind]))
