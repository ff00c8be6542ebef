"""Files that datapipe wrote into a folder of raw data: indexes of its tars, and what is derived."""

from __future__ import annotations

import re

from datapipe.index.columns import COLUMNS
from datapipe.index.manifest import MANIFEST
from datapipe.pack.input.file_start import start_of

_INDEX_OF_TAR = ".index.parquet"
# Beside a manifest of ours: the index of a shard, counted tokens, rejects, columns.
_BESIDE_MANIFEST = re.compile(
    rf"{re.escape(MANIFEST)}|{COLUMNS}|rejects\.jsonl|tokens-[0-9a-f]{{16}}"
    r"|(shard|part)-\d{6,}\.parquet"
)
_MARK = b'"format": "datapipe"'
_START = 1 << 16


def is_own(folder: str, name: str) -> bool:
    """Return whether datapipe wrote a file or folder, so that it is no raw data.

    Examples:
        >>> is_own("photos", "0001.jpg"), is_own("photos", "dataset.json")
        (False, False)
    """
    if name.endswith(_INDEX_OF_TAR):
        return bool(start_of(f"{folder}/{name.removesuffix(_INDEX_OF_TAR)}.tar", 1))
    if not _BESIDE_MANIFEST.fullmatch(name):
        return False
    return _MARK in start_of(f"{folder}/{MANIFEST}", _START)
