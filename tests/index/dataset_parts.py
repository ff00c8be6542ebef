"""Datasets of a mixture, and how often they were opened."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapipe.index.dataset import Dataset, DatasetMixture, open_dataset
from datapipe.index.mixture import ColumnCounts, DatasetPart


class Opener:
    """Opens a folder, and counts how often."""

    opened = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, of: int) -> Dataset:
        Opener.opened += 1
        return open_dataset(self._folder)


def mixture_of(folders: Sequence[Path], **counts: Any) -> DatasetMixture:
    """Datasets as one; `counts` replace those that a mixture has noted of each."""
    parts = []
    for folder in folders:
        dataset = open_dataset(folder)
        part = DatasetPart(
            name=f"the {folder.name}",
            open_it=Opener(folder),
            counts=replace(ColumnCounts.of(dataset.columns), **counts),
            fingerprint=dataset.fingerprint,
            of=len(folders),
            is_remote=False,
            arrays=dataset.manifest.arrays,
        )
        parts.append(part)
    return DatasetMixture.of(parts)
