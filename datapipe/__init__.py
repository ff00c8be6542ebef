"""datapipe: the input pipeline for vision-language training.

`pack_dataset` turns raw image-text data into indexed WebDataset shards, `make_loader` feeds a
training loop from them. The `datapipe` command does the former from a shell.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from datapipe.errors import (
    DatapipeError,
    DecodeError,
    EndlessError,
    IndexMismatch,
    MissingMember,
    PackError,
    PlanError,
    SampleError,
    StateMismatch,
    StoreError,
    TransformError,
)

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec
    from datapipe.decode.text.spec import TextSpec
    from datapipe.index.scan import index_shards
    from datapipe.loader.loader import Loader
    from datapipe.loader.make import make_loader
    from datapipe.pack.job import pack_dataset
    from datapipe.pack.report import PackReport

__version__ = "0.1.0"

__all__ = [
    "DatapipeError",
    "DecodeError",
    "EndlessError",
    "ImageSpec",
    "IndexMismatch",
    "Loader",
    "MissingMember",
    "PackError",
    "PackReport",
    "PlanError",
    "SampleError",
    "StateMismatch",
    "StoreError",
    "TextSpec",
    "TransformError",
    "index_shards",
    "make_loader",
    "pack_dataset",
]

# Imported on first use, so that `datapipe pack` does not wait for torch.
_LAZY = {
    "ImageSpec": "datapipe.decode.spec",
    "Loader": "datapipe.loader.loader",
    "PackReport": "datapipe.pack.report",
    "TextSpec": "datapipe.decode.text.spec",
    "index_shards": "datapipe.index.scan",
    "make_loader": "datapipe.loader.make",
    "pack_dataset": "datapipe.pack.job",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
