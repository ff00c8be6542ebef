"""The datasets of arrays of a mixture."""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.mixed_dataset import MixedDataset
from datapipe.store.arrays import ArrayDataset, ArrayDatasets, ArrayStore, open_images
from datapipe.store.joined import JoinedStore


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

    def __reduce__(self) -> tuple[object, ...]:
        return _joined, (self._dataset, self._store, self._images)

    def split(self, samples: Int64, chosen: Bools) -> list[tuple[ArrayDataset, Bools]]:
        kinds = self._dataset.kinds(samples)
        chosen = chosen & self._is_array[kinds]
        found = np.unique(kinds[chosen]).tolist()
        return [(self._at(number), chosen & (kinds == number)) for number in found]

    def _at(self, number: int) -> ArrayDataset:
        opened = self._opened.get(number)
        if opened is None:
            # Two threads may open it; one of the two is kept.
            opened = self._opened.setdefault(number, self._open(number))
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


def _joined(dataset: MixedDataset, store: JoinedStore, images: bool) -> JoinedArrays:
    return JoinedArrays(dataset, store, images=images)
