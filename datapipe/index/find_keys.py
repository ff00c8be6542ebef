"""Samples by their keys. There is no index of keys: all keys are compared with the few wanted."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.index.columns import Columns

_CHUNK = 1 << 20  # samples


def find_keys(columns: Columns, keys: Collection[str]) -> dict[str, int]:
    """Return the numbers of the samples with these keys; keys that no sample has are missing."""
    found: dict[str, int] = {}
    encodable = {key for key in keys if key == key.encode(errors="replace").decode()}
    wanted = pa.array(sorted(encodable), pa.large_string())
    samples = len(columns.text_bytes)  # columns of a mixture have it too
    for start in range(0, samples, _CHUNK):
        array = columns.strings("key", start, min(start + _CHUNK, samples))
        for row in np.flatnonzero(pc.is_in(array, wanted).to_numpy(zero_copy_only=False)).tolist():
            found.setdefault(array[row].as_py(), start + row)
    return found
