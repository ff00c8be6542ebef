"""datapipe: the input pipeline for vision-language training.

`pack_dataset` turns raw image-text data into indexed WebDataset shards, `make_loader` feeds a
training loop from them. The `datapipe` command does the former from a shell.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe import errors as errors
    from datapipe import plan as plan
    from datapipe import testing as testing
    from datapipe.cache.spec import CacheSpec as CacheSpec
    from datapipe.convert.job import ConvertReport as ConvertReport
    from datapipe.convert.job import convert_dataset as convert_dataset
    from datapipe.convert.pack_arrays import pack_arrays as pack_arrays
    from datapipe.curate.choose import merge_datasets as merge_datasets
    from datapipe.curate.choose import select_samples as select_samples
    from datapipe.curate.choose import split_dataset as split_dataset
    from datapipe.curate.dedup import dedup_dataset as dedup_dataset
    from datapipe.curate.repair import RepairReport as RepairReport
    from datapipe.curate.repair import repair_dataset as repair_dataset
    from datapipe.curate.spec import CopyReport as CopyReport
    from datapipe.curate.spec import CopySpec as CopySpec
    from datapipe.decode.dali.options import DaliOptions as DaliOptions
    from datapipe.decode.spec import ImageSpec as ImageSpec
    from datapipe.decode.spec import VideoSpec as VideoSpec
    from datapipe.errors import DatapipeError as DatapipeError
    from datapipe.errors import DecodeError as DecodeError
    from datapipe.errors import EndlessError as EndlessError
    from datapipe.errors import IndexMismatch as IndexMismatch
    from datapipe.errors import MissingMember as MissingMember
    from datapipe.errors import PackError as PackError
    from datapipe.errors import PlanError as PlanError
    from datapipe.errors import SampleError as SampleError
    from datapipe.errors import StateMismatch as StateMismatch
    from datapipe.errors import StoreError as StoreError
    from datapipe.errors import TransformError as TransformError
    from datapipe.errors import WorkerError as WorkerError
    from datapipe.index.record_fields import IndexedField as IndexedField
    from datapipe.index.tar.indexer import index_shards as index_shards
    from datapipe.inspect.diff import DatasetDiff as DatasetDiff
    from datapipe.inspect.diff import diff_datasets as diff_datasets
    from datapipe.inspect.findings import Finding as Finding
    from datapipe.inspect.findings import VerifyReport as VerifyReport
    from datapipe.inspect.preview.build import preview as preview
    from datapipe.inspect.sample import InspectedMember as InspectedMember
    from datapipe.inspect.sample import InspectedSample as InspectedSample
    from datapipe.inspect.sample import inspect_sample as inspect_sample
    from datapipe.inspect.summary import DatasetSummary as DatasetSummary
    from datapipe.inspect.summary import summarize_dataset as summarize_dataset
    from datapipe.inspect.verify import verify_dataset as verify_dataset
    from datapipe.loader.batch.unpack import unpack as unpack
    from datapipe.loader.loader import Loader as Loader
    from datapipe.loader.make_loader import make_loader as make_loader
    from datapipe.loader.specs import BatchSpec as BatchSpec
    from datapipe.loader.specs import DeviceSpec as DeviceSpec
    from datapipe.loader.specs import PackSpec as PackSpec
    from datapipe.loader.specs import RemoteSpec as RemoteSpec
    from datapipe.loader.specs import RunSpec as RunSpec
    from datapipe.loader.specs import WorkerSpec as WorkerSpec
    from datapipe.loader.webdataset_source import WebDatasetSource as WebDatasetSource
    from datapipe.loader.webdataset_source import webdataset_source as webdataset_source
    from datapipe.mixture.spec import Mixture as Mixture
    from datapipe.model_check import ModelCheck as ModelCheck
    from datapipe.model_check import check_model as check_model
    from datapipe.models.families import specs_for as specs_for
    from datapipe.monitor.monitor import Monitor as Monitor
    from datapipe.pack.pack_dataset import pack_dataset as pack_dataset
    from datapipe.pack.report import PackReport as PackReport
    from datapipe.store.record_fields import index_fields as index_fields
    from datapipe.text.markup import ImageMarkup as ImageMarkup
    from datapipe.text.markup import VideoMarkup as VideoMarkup
    from datapipe.text.spec import TextSpec as TextSpec
    from datapipe.tune.job import tune_workers as tune_workers
    from datapipe.tune.result import TuneResult as TuneResult

__version__ = "0.1.0"

# Imported on first use, so that `datapipe pack` does not wait for torch.
_LAZY = {
    name: f"datapipe.{module}"
    for module, names in {
        "cache.spec": "CacheSpec",
        "convert.job": "ConvertReport convert_dataset",
        "convert.pack_arrays": "pack_arrays",
        "curate.choose": "merge_datasets select_samples split_dataset",
        "curate.dedup": "dedup_dataset",
        "curate.repair": "RepairReport repair_dataset",
        "curate.spec": "CopyReport CopySpec",
        "decode.dali.options": "DaliOptions",
        "decode.spec": "ImageSpec VideoSpec",
        "errors": (
            "DatapipeError DecodeError EndlessError IndexMismatch MissingMember PackError "
            "PlanError SampleError StateMismatch StoreError TransformError WorkerError"
        ),
        "index.record_fields": "IndexedField",
        "index.tar.indexer": "index_shards",
        "inspect.diff": "DatasetDiff diff_datasets",
        "inspect.findings": "Finding VerifyReport",
        "inspect.preview.build": "preview",
        "inspect.sample": "InspectedMember InspectedSample inspect_sample",
        "inspect.summary": "DatasetSummary summarize_dataset",
        "inspect.verify": "verify_dataset",
        "loader.batch.unpack": "unpack",
        "loader.loader": "Loader",
        "loader.make_loader": "make_loader",
        "loader.specs": "BatchSpec DeviceSpec PackSpec RemoteSpec RunSpec WorkerSpec",
        "loader.webdataset_source": "WebDatasetSource webdataset_source",
        "mixture.spec": "Mixture",
        "model_check": "ModelCheck check_model",
        "models.families": "specs_for",
        "monitor.monitor": "Monitor",
        "pack.pack_dataset": "pack_dataset",
        "pack.report": "PackReport",
        "store.record_fields": "index_fields",
        "text.markup": "ImageMarkup VideoMarkup",
        "text.spec": "TextSpec",
        "tune.job": "tune_workers",
        "tune.result": "TuneResult",
    }.items()
    for name in names.split()
}

__all__ = sorted(_LAZY)

# Modules whose functions docs show, such as `datapipe.plan.pack_lengths`.
_MODULES = frozenset({"errors", "plan", "testing"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"datapipe.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the module, those that are not imported yet included."""
    return sorted({*globals(), *__all__, *_MODULES})
