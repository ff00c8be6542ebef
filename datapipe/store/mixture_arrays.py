"""The datasets of arrays of a mixture."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Bools, Int64
from datapipe.index.dataset_mixture import DatasetMixture
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.files.memory import START
from datapipe.index.files.mixture_column import CLOSED, IN_SHARDS, OPEN
from datapipe.index.mixture_columns import MixtureColumns
from datapipe.store.arrays import ArrayDataset, ArrayDatasets, ArrayStore, open_images
from datapipe.store.mixture_store import MixtureStore


class MixtureArrays(ArrayDatasets):
    """Datasets of arrays in a mixture, each mapped when it is first needed.

    Args:
        dataset: the mixture.
        store: of its samples.
        images: whether images are wanted.

    Attributes:
        columns: of the mixture.
        places: int64 [7, datasets], where their images, texts, and flags of images and texts that
            were compared begin, as indices in `memory_of` bytes; where images and texts end; and
            `IN_SHARDS`, `CLOSED` or `OPEN`. Image i of the mixture
            is at i times `size`, its flag at i, and the flag of member m at m. Texts end after so
            many bytes.
        size: values of an image, of all datasets; 0 if they are not wanted.
    """

    def __init__(self, dataset: DatasetMixture, store: MixtureStore, *, images: bool) -> None:
        self._dataset, self._store, self._images = dataset, store, images
        assert isinstance(dataset.columns, MixtureColumns)
        self.columns = dataset.columns
        arrays = [part.arrays for part in dataset.parts]
        self._is_array = np.array([each is not None for each in arrays], bool)
        sides = [each.image["size"] for each in arrays if each is not None and each.image]
        self.size = 3 * math.prod(map(int, sides[0])) if images and sides else 0
        self._edges: list[int] = dataset.sample_edges.tolist()
        self._opened: dict[int, ArrayDataset] = {}
        self._lock = threading.Lock()
        self.places = np.zeros((7, len(dataset.parts)), np.int64)
        self.places[6] = np.where(self._is_array, CLOSED, IN_SHARDS)

    def __reduce__(self) -> tuple[object, ...]:
        return _joined, (self._dataset, self._store, self._images)

    def hold(self, samples: Int64) -> Bools:
        found: Bools = self._is_array[self._dataset.kinds(samples)]
        return found

    def split(self, samples: Int64, chosen: Bools) -> list[tuple[ArrayDataset, Bools]]:
        kinds = self._dataset.kinds(samples)
        chosen = chosen & self._is_array[kinds]
        found = np.unique(kinds[chosen]).tolist()
        return [(self.dataset(number), chosen & (kinds == number)) for number in found]

    def number(self, sample: int) -> int:
        """Return the number of the dataset of a sample."""
        return bisect_right(self._edges, sample) - 1

    def middle(self, sample: int) -> int | None:
        number = self.number(sample)
        return self.dataset(number).middle(sample) if self._is_array[number] else None

    def dataset(self, number: int) -> ArrayDataset:
        """Return a dataset of arrays, by its number in the mixture."""
        opened = self._opened.get(number)
        if opened is None:
            with self._lock:
                opened = self._opened.get(number)
                if opened is None:
                    opened = self._open(number)
                    self.columns.open_part(number)
                    self.places[:6, number] = self._places_of(opened, number)
                    self._opened[number] = opened
                    self.places[6, number] = OPEN  # last: who sees it reads at these places
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

    def _places_of(self, opened: ArrayDataset, number: int) -> list[int]:
        columns, images = self.columns, opened.images
        flags = opened.texts.flags(opened.columns)
        member, image = int(columns.member_edges[number]), int(columns.image_edges[number])
        texts = _place(opened.texts.texts), _place(flags) - member, len(opened.texts.texts)
        if images is None:  # no image is taken
            return [0, texts[0], 0, texts[1], 0, texts[2]]
        end = image + len(images.flags)
        first = _place(images.data) - image * self.size
        return [first, texts[0], _place(images.flags) - image, texts[1], end, texts[2]]


def _place(array: npt.NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address - START


def _joined(dataset: DatasetMixture, store: MixtureStore, images: bool) -> MixtureArrays:
    return MixtureArrays(dataset, store, images=images)
