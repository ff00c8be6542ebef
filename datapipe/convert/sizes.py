"""Size of arrays, known before they are written."""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.index.dataset import Dataset


def array_bytes(dataset: Dataset, spec: ImageSpec | None) -> int:
    """Return the bytes of the arrays of a dataset; without `spec` they are of texts alone."""
    columns = dataset.columns
    if spec is None:
        return int(columns.member_size[:].sum())
    images = len(columns.image_width) * 3 * spec.height * spec.width
    return images + int(columns.text_bytes[:].sum())
