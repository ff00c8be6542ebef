"""The datasets of arrays of a mixture."""

from __future__ import annotations

import threading

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.joined_columns import JoinedColumns
from datapipe.index.mixed_dataset import MixedDataset
from datapipe.store.arrays import ArrayDataset, ArrayDatasets, ArrayStore, open_images
from datapipe.store.joined import JoinedStore

_TEXTS = 1  # row of addresses that every dataset has


class JoinedArrays(ArrayDatasets):
    """Datasets of arrays in a mixture, each mapped when it is first needed.

    Args:
        dataset: the mixture.
        store: of its samples.
        images: whether images are wanted.
    """

    def __init__(self, dataset: MixedDataset, store: JoinedStore, *, images: bool) -> None:
        self._dataset, self._store, self._images = dataset, store, images
        self._is_array = np.array([part.arrays is not None for part in dataset.parts], bool)
        self._opened: dict[int, ArrayDataset] = {}
        self._lock = threading.Lock()
        # Addresses of images, texts, and flags of what was compared, by dataset; 0 of none.
        self._addresses = np.zeros((4, len(dataset.parts)), np.int64)

    def __reduce__(self) -> tuple[object, ...]:
        return _joined, (self._dataset, self._store, self._images)

    def split(self, samples: Int64, chosen: Bools) -> list[tuple[ArrayDataset, Bools]]:
        kinds, chosen = self.find(samples, chosen)
        found = np.unique(kinds[chosen]).tolist()
        return [(self._at(number), chosen & (kinds == number)) for number in found]

    def addresses(self, numbers: Int64) -> Int64:
        """Return where the parts of some datasets are, which are opened if they are not: [4, n].

        Rows are the images, the texts, and the flags of images and texts that were compared.
        """
        found: Int64 = self._addresses[:, numbers]
        if not found[_TEXTS].all():
            for number in np.unique(numbers).tolist():
                self._at(number)
            found = self._addresses[:, numbers]
        return found

    def dataset(self, number: int) -> ArrayDataset:
        """Return a dataset of arrays, by its number in the mixture."""
        return self._at(number)

    @property
    def columns(self) -> JoinedColumns:
        """Columns of the mixture."""
        assert isinstance(self._dataset.columns, JoinedColumns)
        return self._dataset.columns

    def find(self, samples: Int64, chosen: Bools) -> tuple[Int64, Bools]:
        """Return the dataset of each sample, and which of the chosen ones are in arrays."""
        kinds = self._dataset.kinds(samples)
        return kinds, chosen & self._is_array[kinds]

    def _at(self, number: int) -> ArrayDataset:
        opened = self._opened.get(number)
        if opened is None:
            with self._lock:
                opened = self._opened.get(number)
                if opened is None:
                    opened = self._open(number)
                    self._addresses[:, number] = _addresses_of(opened)
                    # Last: who finds a dataset here reads at its addresses.
                    self._opened[number] = opened
        return opened

    def _open(self, number: int) -> ArrayDataset:
        part = self._dataset.parts[number]
        with as_one_of(part.of):
            dataset, store = part.unchanged(), self._store.part(number)
            assert isinstance(store, ArrayStore)
            return ArrayDataset(
                columns=dataset.columns,
                texts=store,
                images=open_images(dataset) if self._images else None,
                first=int(self._dataset.sample_edges[number]),
            )


def _addresses_of(opened: ArrayDataset) -> list[int]:
    images, flags = opened.images, opened.texts.flags(opened.columns)
    held = [
        None if images is None else images.data,
        opened.texts.texts,
        None if images is None else images.flags,
        flags,
    ]
    return [0 if array is None else int(array.ctypes.data) for array in held]


def _joined(dataset: MixedDataset, store: JoinedStore, images: bool) -> JoinedArrays:
    return JoinedArrays(dataset, store, images=images)
