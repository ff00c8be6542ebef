"""Images of several specs in one batch: the check that they fit together, and their plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.forms.image_transform import ImageTransform
from datapipe.errors import PlanError


def check_together(transforms: Sequence[ImageTransform], names: Sequence[str]) -> None:
    """Raise `PlanError` if images of datasets with these names cannot be in one batch.

    Examples:
        >>> from datapipe.decode.transform import make_transform
        >>> small, large = (make_transform(datapipe.ImageSpec(size=size)) for size in (336, 448))
        >>> check_together([small, large], ["captions", "documents"])
        Traceback (most recent call last):
        datapipe.errors.PlanError: ...
    """
    first, other = transforms[0], names[0]
    wanted = first.common()
    for transform, name in zip(transforms, names, strict=True):
        if transform is first:
            continue
        found = transform.common()
        different = [
            f"{key}: {wanted.get(key) or 'none'} of {other}, {found.get(key) or 'none'} of {name}"
            for key in dict.fromkeys((*wanted, *found))
            if wanted.get(key) != found.get(key)
        ]
        if different:
            raise PlanError(
                f"images of {other} (resize={first.spec.resize!r}) and {name} "
                f"(resize={transform.spec.resize!r}) cannot be in one batch; {'; '.join(different)}"
                "; give both an ImageSpec whose images have the same form"
            )


class MixedForms:
    """Plan of the images of one batch that several transforms make; `check_together` has passed.

    Its methods are those of `ImageTransform`. `kinds` is the index of the transform of each image,
    int64 [n]. If there are none, the shape is that of the kinds in `present`, which is not empty.
    """

    def __init__(self, transforms: Sequence[ImageTransform], kinds: Int64, present: Int64) -> None:
        self._count = len(kinds)
        found = np.unique(kinds if len(kinds) else present).tolist()
        self._parts = [(transforms[kind], np.flatnonzero(kinds == kind)) for kind in found]

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        """Return the rows of `pixel_values` of each of n images: int64 [n]."""
        rows = np.zeros(self._count, np.int64)
        for transform, at in self._parts:
            rows[at] = transform.rows(widths[at], heights[at])
        return rows

    def row_shape(self, widths: Int64, heights: Int64) -> tuple[int, ...]:
        """Return the shape of a row of `pixel_values`: the largest where images are padded."""
        shapes = [transform.row_shape(widths[at], heights[at]) for transform, at in self._parts]
        return tuple(map(max, *shapes)) if len(shapes) > 1 else shapes[0]

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        """Return what a model takes beside `pixel_values`, for n images."""
        out: dict[str, Tensor] = {}
        for transform, images in self._parts:
            at, count = images, self._count
            if transform.facts_of_rows:  # then those of all are
                rows, own = self.rows(widths, heights), np.zeros(count, bool)
                own[images] = True
                at, count = np.flatnonzero(np.repeat(own, rows)), int(rows.sum())
            for name, values in transform.facts(widths[images], heights[images]).items():
                if name not in out:
                    shape = (count, *values.shape[1:])
                    out[name] = torch.zeros(shape, dtype=values.dtype, device="cpu")
                out[name][torch.from_numpy(at)] = values
        return out
