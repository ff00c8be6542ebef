"""Several datasets as one: samples are numbered through, and each dataset is opened when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datapipe.index.dataset import Dataset
from datapipe.index.dataset_part import DatasetPart
from datapipe.index.manifest import Manifest
from datapipe.index.mixture_columns import MixtureColumns


@dataclass(frozen=True, kw_only=True)
class DatasetMixture(Dataset):
    """Datasets of a mixture as one. Its manifest is empty."""

    parts: tuple[DatasetPart, ...] = field(repr=False)  # the datasets

    @staticmethod
    def of(parts: Sequence[DatasetPart]) -> DatasetMixture:
        return DatasetMixture(
            folder=Path(),
            home=Path(),
            manifest=Manifest(shards=()),
            columns=MixtureColumns.of(
                [part.columns for part in parts], [part.counts for part in parts]
            ),
            parts=tuple(parts),
        )

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
