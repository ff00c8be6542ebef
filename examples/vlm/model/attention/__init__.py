"""Attention within segments: one function, and what chooses its kernel.

segments = prepare(segments, total, name)   # once a batch: builds the mask that `name` needs
out = attend(q, k, v, segments, name)       # in every layer
"""

from examples.vlm.model.attention.choose import AUTO, Table, choose, choose_by, prepare, why_not
from examples.vlm.model.attention.kernels import KERNELS, Segments, attend

__all__ = [
    "AUTO",
    "KERNELS",
    "Segments",
    "Table",
    "attend",
    "choose",
    "choose_by",
    "prepare",
    "why_not",
]
