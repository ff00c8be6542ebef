"""Pipelines of webdataset over raw samples, and what its own reader makes of tars."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webdataset as wds

from datapipe import WebDatasetSource

Sample = dict[str, Any]


def as_webdataset_reads(tars: Iterable[Path]) -> list[Sample]:
    urls = wds.SimpleShardList([str(path) for path in tars])
    return list(wds.DataPipeline(urls, wds.tarfile_to_samples()))


def keys_of(samples: Iterable[Sample]) -> list[str]:
    return [sample["__key__"] for sample in samples]


def key_pipeline(source: WebDatasetSource, batch_size: int = 4) -> wds.DataPipeline:
    return wds.DataPipeline(source, wds.to_tuple("__key__"), wds.batched(batch_size))


def loaded(source: WebDatasetSource, workers: int, batch_size: int = 4, **options: Any) -> Any:
    """The batches of keys of a WebLoader."""
    options = {"batch_size": None, "num_workers": workers, **options}
    loader = wds.WebLoader(key_pipeline(source, batch_size), **options)
    return ([str(key) for key in keys] for (keys,) in source.track(loader))
