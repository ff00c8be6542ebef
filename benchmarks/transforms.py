"""Transforms of samples that worker processes can import."""

from typing import Any

import numpy as np


def hold_lock(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Work in Python for some milliseconds, which keeps the interpreter's lock."""
    total = 0
    for number in range(60_000):
        total += number & 7
    return sample | {"text": f"{sample['text']} {total}"}
