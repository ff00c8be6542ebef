"""Texts of datasets of arrays that hold tokens."""

from __future__ import annotations

from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.tokens.columns import TokenColumns
from datapipe.loader.schedule.mixture.part import MixturePart
from datapipe.store.arrays import TokenArrays, open_token_arrays
from datapipe.text.encode import EncodedText
from datapipe.text.truncate import IGNORE


class StoredTexts:
    """Texts of a dataset as their tokens were written; opened when first needed."""

    def __init__(self, part: MixturePart, digest: str) -> None:
        self._part = part
        self._digest = digest
        self._opened: tuple[TokenArrays, TokenColumns] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return StoredTexts, (self._part, self._digest)

    def __call__(self, sample: int) -> EncodedText:
        """Return the text of a sample, by its number in the dataset."""
        if self._opened is None:
            data = self._part.data
            with as_one_of(data.of):
                arrays = open_token_arrays(data.unchanged(), self._digest)
                assert arrays is not None
                self._opened = arrays, self._part.text().columns
        arrays, columns = self._opened
        tokens, labels = arrays.of(sample)
        start, stop = columns.sample_image_at[sample : sample + 2].tolist()
        return EncodedText(tokens, columns.image_at[start:stop], labels != IGNORE)

    @staticmethod
    def of(part: MixturePart) -> StoredTexts | None:
        """Return the texts of a dataset; None if they are to be encoded."""
        arrays, rule = part.data.arrays, part.rule
        if arrays is None or rule is None or arrays.encoder != rule.encoder.digest:
            return None
        return StoredTexts(part, rule.encoder.digest)
