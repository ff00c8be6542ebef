"""One dataset of a mixture, opened when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from datapipe.errors import IndexMismatch
from datapipe.index.columns import Columns
from datapipe.index.manifest import Arrays
from datapipe.index.mixture_columns import ColumnCounts
from datapipe.remote.folder import RemoteFolder

if TYPE_CHECKING:
    from datapipe.index.dataset import Dataset


class DatasetPart:
    """One dataset of a mixture. It is opened when it is first needed, in any thread or process.

    A dataset alone is the only part of a mixture of one, see `part_of`.

    Args:
        name: in the mixture.
        open_it: opens it, as one of so many.
        of: datasets of the mixture, which share the limits of memory of one.
        counts, fingerprint: that it had when the mixture was opened.
        is_remote: whether its shards are behind a URL.
        arrays: None where there are shards.
        is_named: whether messages name it; false for a dataset alone.
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
        is_named: bool = True,
    ) -> None:
        self.name = name
        self.counts = counts
        self.fingerprint = fingerprint
        self.is_remote = is_remote
        self.arrays = arrays
        self.of = of
        self.is_named = is_named
        self._open_it = open_it
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(
            DatasetPart,
            of=self.of,
            is_remote=self.is_remote,
            arrays=self.arrays,
            is_named=self.is_named,
        )
        return make, (self.name, self._open_it, self.counts, self.fingerprint)

    @property
    def prefix(self) -> str:
        """Beginning of messages about the dataset."""
        return f"dataset {self.name!r} of the mixture: " if self.is_named else ""

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


def part_of(dataset: Dataset) -> DatasetPart:
    """Return a dataset alone as the part of a mixture of one."""
    return DatasetPart(
        dataset.name,
        partial(_itself, dataset),
        ColumnCounts.of(dataset.columns),
        dataset.fingerprint,
        of=1,
        is_remote=isinstance(dataset.folder, RemoteFolder),
        arrays=dataset.manifest.arrays,
        is_named=False,
    )


def _itself(dataset: Dataset, of: int) -> Dataset:
    return dataset
