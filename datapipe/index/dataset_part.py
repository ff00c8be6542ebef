"""One dataset of a mixture, opened when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from datapipe.errors import IndexMismatch
from datapipe.index.columns import Columns
from datapipe.index.manifest import Arrays
from datapipe.index.mixture_columns import ColumnCounts
from datapipe.remote.folder import RemoteFolder

if TYPE_CHECKING:
    from datapipe.index.dataset import Dataset


@dataclass(eq=False, kw_only=True)
class DatasetPart:
    """One dataset of a mixture. It is opened when it is first needed, in any thread or process.

    A dataset alone is the only part of a mixture of one, see `part_of`.
    """

    name: str  # in the mixture
    open_it: Callable[[int], Dataset]  # opens it, as one of so many
    # `counts`, `fingerprint`: that it had when the mixture was opened
    counts: ColumnCounts
    fingerprint: str
    of: int  # datasets of the mixture, which share the limits of memory of one
    is_remote: bool  # True if its shards are behind a URL
    arrays: Arrays | None = None  # None where there are shards
    max_frames: int | None = None  # of each video of its samples
    is_named: bool = True  # True if messages name it; false for a dataset alone

    def __post_init__(self) -> None:
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        options = {item.name: getattr(self, item.name) for item in fields(self)}
        return partial(DatasetPart, **options), ()

    @property
    def prefix(self) -> str:
        """Beginning of messages about the dataset."""
        return f"dataset {self.name!r} of the mixture: " if self.is_named else ""

    def dataset(self) -> Dataset:
        """Return the dataset; IndexMismatch if it has changed since the mixture was opened."""
        if self._dataset is None:
            with self._lock:
                if self._dataset is None:
                    self._dataset = self._checked(self.open_it(self.of))
        return self._dataset

    def unchanged(self) -> Dataset:
        """Return the dataset, before files are opened that nothing else compares with its index.

        IndexMismatch if it has changed since the mixture was opened.
        """
        dataset = self.dataset()
        dataset.check_unchanged()
        return dataset

    def alone(self) -> Dataset:
        """Open the dataset to look at all of it, as if it were the only one."""
        return self._checked(self.open_it(1))

    def columns(self) -> Columns:
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
        name=dataset.name,
        open_it=partial(_itself, dataset),
        counts=ColumnCounts.of(dataset.columns),
        fingerprint=dataset.fingerprint,
        of=1,
        is_remote=isinstance(dataset.folder, RemoteFolder),
        arrays=dataset.manifest.arrays,
        max_frames=dataset.max_frames,
        is_named=False,
    )


def _itself(dataset: Dataset, of: int) -> Dataset:
    return dataset
