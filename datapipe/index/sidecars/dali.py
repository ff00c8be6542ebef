"""`SHARD.idx`, which DALI's `readers.webdataset` takes as `index_paths`.

Source: `wds2idx.py` of NVIDIA DALI 2.x, index version 1.2: a line `v1.2 SAMPLES`, then a line per
sample with `EXTENSION OFFSET SIZE NAME` for each member, everything set apart by spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from datapipe.errors import IndexMismatch
from datapipe.index.manifest import Shard, replace_file

_SPACE = re.compile(r"[ \t\n\v\f\r]")


class DaliIndexes:
    """Writes `SHARD.idx` beside each shard that holds a sample; DALI does not open others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, shard: Shard, table: pa.Table) -> list[Path]:
        if not table.num_rows:
            return []
        path = self._folder / f"{shard.name.removesuffix('.tar')}.idx"
        lines = [f"v1.2 {table.num_rows}", *_lines(shard, table)]
        replace_file(path, "".join(f"{line}\n" for line in lines).encode())
        return [path]

    def finish(self) -> list[Path]:
        return []


def _lines(shard: Shard, table: pa.Table) -> Iterator[str]:
    columns = (table[name].to_pylist() for name in ("key", "ext", "offset", "size"))
    for key, exts, offsets, sizes in zip(*columns, strict=True):
        for ext in exts:
            if _SPACE.search(f"{key}.{ext}"):
                raise IndexMismatch(
                    f"{shard.name}: the name {f'{key}.{ext}'!r} holds a space, which DALI's index "
                    "cannot hold; repack the shards with `datapipe pack`, which writes names "
                    "without spaces"
                )
        members = zip(exts, offsets, sizes, strict=True)
        yield " ".join(f"{ext} {offset} {size} {key}.{ext}" for ext, offset, size in members)
