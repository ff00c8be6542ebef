"""Texts of datasets of arrays that hold tokens."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.index.dataset import Dataset
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.tokens.columns import TokenColumns
from datapipe.loader.schedule.mixture_part import PartSource
from datapipe.store.arrays import TokenArrays, open_token_arrays
from datapipe.text.encode import EncodedText
from datapipe.text.truncate import IGNORE


@dataclass(frozen=True)
class StoredTexts:
    """Texts of a dataset as their tokens were written.

    Attributes:
        arrays: tokens and labels.
        columns: positions of images in them.
    """

    arrays: TokenArrays
    columns: TokenColumns

    def __call__(self, sample: int) -> EncodedText:
        """Return the text of a sample."""
        tokens, labels = self.arrays.of(sample)
        start, stop = self.columns.sample_image_at[sample : sample + 2].tolist()
        return EncodedText(tokens, self.columns.image_at[start:stop], labels != IGNORE)

    @staticmethod
    def of(dataset: Dataset, digest: str, columns: TokenColumns) -> StoredTexts | None:
        """Return the texts that a tokenizer and template made; None if there are none."""
        arrays = open_token_arrays(dataset, digest)
        return None if arrays is None else StoredTexts(arrays, columns)


class PartTexts:
    """Texts of a dataset of a mixture as their tokens were written; opened when first needed.

    Args:
        part: the dataset, which holds tokens of this tokenizer and template.
        digest: of the two.
    """

    def __init__(self, part: PartSource, digest: str) -> None:
        self._part = part
        self._digest = digest
        self._texts: StoredTexts | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return PartTexts, (self._part, self._digest)

    def __call__(self, sample: int) -> EncodedText:
        """Return the text of a sample, by its number in the dataset."""
        if self._texts is None:
            part = self._part.part
            with as_one_of(part.of):
                columns = self._part.text().columns
                self._texts = StoredTexts.of(part.unchanged(), self._digest, columns)
        assert self._texts is not None
        return self._texts(sample)

    @staticmethod
    def of(part: PartSource) -> PartTexts | None:
        """Return the texts of a dataset; None if they are to be encoded."""
        arrays, rule = part.part.arrays, part.rule
        if arrays is None or rule is None or arrays.encoder != rule.encoder.digest:
            return None
        return PartTexts(part, rule.encoder.digest)
