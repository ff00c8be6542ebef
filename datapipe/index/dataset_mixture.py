"""Several datasets as one: samples are numbered through, and each dataset is opened when needed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import IndexMismatch
from datapipe.index.columns import Columns
from datapipe.index.dataset import Dataset
from datapipe.index.manifest import Arrays, Manifest
from datapipe.index.mixture_columns import ColumnCounts, MixtureColumns


class DatasetPart:
    """One dataset of a mixture. It is opened when it is first needed, in any thread or process.

    Args:
        name: in the mixture.
        open_it: opens it, as one of so many.
        of: datasets of the mixture, which share the limits of memory of one.
        counts, fingerprint: that it had when the mixture was opened.
        is_remote: whether its shards are behind a URL.
        arrays: None where there are shards.
    """

    def __init__(
        self,
        name: str,
        open_it: Callable[[int], Dataset],
        counts: ColumnCounts,
        fingerprint: str,
        *,
        of: int,
        is_remote: bool,
        arrays: Arrays | None = None,
    ) -> None:
        self.name = name
        self.counts = counts
        self.fingerprint = fingerprint
        self.is_remote = is_remote
        self.arrays = arrays
        self.of = of
        self._open_it = open_it
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(DatasetPart, of=self.of, is_remote=self.is_remote, arrays=self.arrays)
        return make, (self.name, self._open_it, self.counts, self.fingerprint)

    def dataset(self) -> Dataset:
        """Return the dataset.

        Raises:
            IndexMismatch: it has changed since the mixture was opened.
        """
        if self._dataset is None:
            with self._lock:
                if self._dataset is None:
                    self._dataset = self._checked(self._open_it(self.of))
        return self._dataset

    def unchanged(self) -> Dataset:
        """Return the dataset, before files are opened that nothing else compares with its index.

        Raises:
            IndexMismatch: it has changed since the mixture was opened.
        """
        dataset = self.dataset()
        dataset.check_unchanged()
        return dataset

    def alone(self) -> Dataset:
        """Open the dataset to look at all of it, as if it were the only one."""
        return self._checked(self._open_it(1))

    def columns(self) -> Columns:
        """Return its columns, as `dataset` does."""
        return self.dataset().columns

    def _checked(self, dataset: Dataset) -> Dataset:
        if dataset.fingerprint != self.fingerprint:
            raise IndexMismatch(
                f"{dataset.folder} was packed or indexed again after it was opened as dataset "
                f"{self.name!r} of a mixture; call make_loader again"
            )
        return dataset


@dataclass(frozen=True, kw_only=True)
class DatasetMixture(Dataset):
    """Datasets of a mixture as one. Its manifest is empty.

    Attributes:
        parts: the datasets.
    """

    parts: tuple[DatasetPart, ...] = field(repr=False)

    @staticmethod
    def of(parts: Sequence[DatasetPart]) -> DatasetMixture:
        """Join datasets."""
        return DatasetMixture(
            folder=Path(),
            home=Path(),
            manifest=Manifest(shards=()),
            columns=MixtureColumns(
                [part.columns for part in parts], [part.counts for part in parts]
            ),
            parts=tuple(parts),
        )

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.sample_edges[-1])

    @property
    def sample_edges(self) -> Int64:
        """Number of the first sample of each dataset, and of all samples: int64 [datasets + 1]."""
        assert isinstance(self.columns, MixtureColumns)
        return self.columns.sample_edges

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(f"{part.name}\0{part.fingerprint}\0".encode())
        return digest.hexdigest()

    @property
    def bytes(self) -> int:
        return sum(part.dataset().bytes for part in self.parts)

    @property
    def title(self) -> str:
        return f"a mixture of {len(self.parts)} datasets"

    def check_unchanged(self) -> None:
        """Do nothing: each dataset is compared when it is opened."""

    def kinds(self, samples: Int64) -> Int64:
        """Return the number of the dataset of each sample: int64 [n] in and out."""
        found: Int64 = np.searchsorted(self.sample_edges, samples, side="right") - 1
        return found

    def dataset_names(self, samples: Int64) -> list[str]:
        """Return the name of the dataset of each sample; `samples` is int64 [n]."""
        return [self.parts[number].name for number in self.kinds(samples).tolist()]
