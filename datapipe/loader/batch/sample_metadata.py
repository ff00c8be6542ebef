"""Keys of a batch beside pixels and tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from datapipe.array_types import Int64
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.text.sample_text import sample_text

logger = logging.getLogger(__name__)

FACTS = frozenset(
    {
        *("images_per_sample", "text", "key", "valid", "source", "dataset", "sample"),
        *("num_items_in_batch", GEOMETRY),
    }
)
"""Names in `meta` that are not fields of a JSON member."""


class SampleMetadata:
    """Keys, texts, and the fields that `meta` names, by slot."""

    def __init__(
        self,
        meta: Sequence[str],
        dataset: Dataset,
        samples: Int64,  # int64 [B], their numbers
        keys: list[str],
        *,
        texts: bool,  # keep texts even if `meta` does not name them
    ) -> None:
        size = len(samples)
        self.keys = keys
        self.text: list[str] = [""] * size
        self._texts = texts or "text" in meta
        self._origins: dict[str, list[str]] = {}
        if "source" in meta:
            self._origins["source"] = dataset.columns.sources(samples)
        if "dataset" in meta:
            self._origins["dataset"] = dataset.dataset_names(samples)
        self._fields: dict[str, list[Any]] = {
            name: [None] * size for name in meta if name not in FACTS
        }
        self._names: set[str] = set()  # fields that samples have

    @property
    def wanted(self) -> bool:
        """True if the texts of samples are needed."""
        return self._texts or bool(self._fields)

    @property
    def facts(self) -> dict[str, list[Any]]:
        """Lists over all slots, by name."""
        return {"text": self.text, "key": self.keys, **self._fields, **self._origins}

    def set(self, slot: int, caption: str | None, record: Any) -> None:
        """Set the text and the fields of a sample."""
        if self._texts:
            self.text[slot] = sample_text(caption, record)
        if self._fields and isinstance(record, dict):
            self._names.update(record)
            for name, values in self._fields.items():
                values[slot] = record.get(name)

    def empty(self, slot: int) -> None:
        """Remove the text and the fields of a sample."""
        self.text[slot] = ""
        for values in self._fields.values():
            values[slot] = None

    def warn_of_absent_fields(self) -> None:
        """Warn of fields that no sample has: they may be misspelt."""
        for name in self._fields.keys() - self._names:
            logger.warning(
                "meta names %r, which no sample of this batch has; they have %s, and a batch can "
                "carry %s",
                *(name, sorted(self._names) or "no fields", sorted(FACTS)),
            )
