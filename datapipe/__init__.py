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
    WorkerError,
)

if TYPE_CHECKING:
    from datapipe import plan as plan
    from datapipe import testing as testing
    from datapipe.cache.spec import CacheSpec
    from datapipe.convert.job import ConvertReport, convert_dataset
    from datapipe.convert.packed_index import pack_arrays
    from datapipe.curate.dedup import dedup_dataset
    from datapipe.curate.merge import merge_datasets
    from datapipe.curate.repair import RepairReport, repair_dataset
    from datapipe.curate.select import select_samples
    from datapipe.curate.spec import CopyReport, CopySpec
    from datapipe.curate.split import split_dataset
    from datapipe.decode.dali.options import DaliOptions
    from datapipe.decode.spec import ImageSpec
    from datapipe.decode.video_spec import VideoSpec
    from datapipe.index.record_fields import IndexedField
    from datapipe.index.tar.indexer import index_shards
    from datapipe.inspect.diff import DatasetDiff, diff_datasets
    from datapipe.inspect.findings import Finding, VerifyReport
    from datapipe.inspect.preview.build import preview
    from datapipe.inspect.sample import InspectedMember, InspectedSample, inspect_sample
    from datapipe.inspect.summary import DatasetSummary, summarize_dataset
    from datapipe.inspect.verify import verify_dataset
    from datapipe.loader.batch.unpack import unpack
    from datapipe.loader.loader import Loader
    from datapipe.loader.make_loader import make_loader
    from datapipe.loader.specs import (
        BatchSpec,
        DeviceSpec,
        PackSpec,
        RemoteSpec,
        RunSpec,
        WorkerSpec,
    )
    from datapipe.loader.webdataset_source import WebDatasetSource, webdataset_source
    from datapipe.mixture.spec import Mixture
    from datapipe.model_check import ModelCheck, check_model
    from datapipe.models.families import specs_for
    from datapipe.monitor.monitor import Monitor
    from datapipe.pack.pack_dataset import pack_dataset
    from datapipe.pack.report import PackReport
    from datapipe.store.record_fields import index_fields
    from datapipe.text.image_markup import ImageMarkup
    from datapipe.text.spec import TextSpec
    from datapipe.text.video_markup import VideoMarkup
    from datapipe.tune.job import tune_workers
    from datapipe.tune.result import TuneResult

__version__ = "0.1.0"

__all__ = [
    "BatchSpec",
    "CacheSpec",
    "ConvertReport",
    "CopyReport",
    "CopySpec",
    "DaliOptions",
    "DatapipeError",
    "DatasetDiff",
    "DatasetSummary",
    "DecodeError",
    "DeviceSpec",
    "EndlessError",
    "Finding",
    "ImageMarkup",
    "ImageSpec",
    "IndexMismatch",
    "IndexedField",
    "InspectedMember",
    "InspectedSample",
    "Loader",
    "MissingMember",
    "Mixture",
    "ModelCheck",
    "Monitor",
    "PackError",
    "PackReport",
    "PackSpec",
    "PlanError",
    "RemoteSpec",
    "RepairReport",
    "RunSpec",
    "SampleError",
    "StateMismatch",
    "StoreError",
    "TextSpec",
    "TransformError",
    "TuneResult",
    "VerifyReport",
    "VideoMarkup",
    "VideoSpec",
    "WebDatasetSource",
    "WorkerError",
    "WorkerSpec",
    "check_model",
    "convert_dataset",
    "dedup_dataset",
    "diff_datasets",
    "index_fields",
    "index_shards",
    "inspect_sample",
    "make_loader",
    "merge_datasets",
    "pack_arrays",
    "pack_dataset",
    "preview",
    "repair_dataset",
    "select_samples",
    "specs_for",
    "split_dataset",
    "summarize_dataset",
    "tune_workers",
    "unpack",
    "verify_dataset",
    "webdataset_source",
]

# Imported on first use, so that `datapipe pack` does not wait for torch.
_LAZY = {
    "BatchSpec": "datapipe.loader.specs",
    "CacheSpec": "datapipe.cache.spec",
    "ConvertReport": "datapipe.convert.job",
    "CopyReport": "datapipe.curate.spec",
    "CopySpec": "datapipe.curate.spec",
    "DaliOptions": "datapipe.decode.dali.options",
    "DatasetDiff": "datapipe.inspect.diff",
    "DatasetSummary": "datapipe.inspect.summary",
    "DeviceSpec": "datapipe.loader.specs",
    "Finding": "datapipe.inspect.findings",
    "ImageMarkup": "datapipe.text.image_markup",
    "ImageSpec": "datapipe.decode.spec",
    "IndexedField": "datapipe.index.record_fields",
    "InspectedMember": "datapipe.inspect.sample",
    "InspectedSample": "datapipe.inspect.sample",
    "Loader": "datapipe.loader.loader",
    "Mixture": "datapipe.mixture.spec",
    "ModelCheck": "datapipe.model_check",
    "Monitor": "datapipe.monitor.monitor",
    "PackReport": "datapipe.pack.report",
    "PackSpec": "datapipe.loader.specs",
    "RemoteSpec": "datapipe.loader.specs",
    "RepairReport": "datapipe.curate.repair",
    "RunSpec": "datapipe.loader.specs",
    "TextSpec": "datapipe.text.spec",
    "TuneResult": "datapipe.tune.result",
    "VerifyReport": "datapipe.inspect.findings",
    "VideoMarkup": "datapipe.text.video_markup",
    "VideoSpec": "datapipe.decode.video_spec",
    "WebDatasetSource": "datapipe.loader.webdataset_source",
    "WorkerSpec": "datapipe.loader.specs",
    "check_model": "datapipe.model_check",
    "convert_dataset": "datapipe.convert.job",
    "dedup_dataset": "datapipe.curate.dedup",
    "diff_datasets": "datapipe.inspect.diff",
    "index_fields": "datapipe.store.record_fields",
    "index_shards": "datapipe.index.tar.indexer",
    "inspect_sample": "datapipe.inspect.sample",
    "make_loader": "datapipe.loader.make_loader",
    "merge_datasets": "datapipe.curate.merge",
    "pack_arrays": "datapipe.convert.packed_index",
    "pack_dataset": "datapipe.pack.pack_dataset",
    "preview": "datapipe.inspect.preview.build",
    "repair_dataset": "datapipe.curate.repair",
    "select_samples": "datapipe.curate.select",
    "specs_for": "datapipe.models.families",
    "split_dataset": "datapipe.curate.split",
    "summarize_dataset": "datapipe.inspect.summary",
    "tune_workers": "datapipe.tune.job",
    "unpack": "datapipe.loader.batch.unpack",
    "verify_dataset": "datapipe.inspect.verify",
    "webdataset_source": "datapipe.loader.webdataset_source",
}

# Modules whose functions docs show, such as `datapipe.plan.pack_lengths`.
_MODULES = frozenset({"plan", "testing"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"datapipe.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the module, those that are not imported yet included."""
    return sorted({*globals(), *__all__, *_MODULES})
