"""Names that the members of a foreign tar have in the tar itself, where its index has others.

The index of a JPEG called `0.img` has `img.jpg`, and it lacks members that were left out. Other
readers see the tar as it is.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.index.tar.grouping import is_no_data, split_name
from datapipe.index.tar.headers import TarScanner


def as_in_tar(path: Path, table: pa.Table) -> tuple[pa.Table, str]:
    """Return an index with the extensions that its tar has, and a member that it lacks.

    The latter is the first member of a sample that is not in the index; "" without any. Only
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
