"""`pack_arrays`: raw data straight to arrays."""

from __future__ import annotations

import time
from dataclasses import replace
from os import PathLike
from typing import Any

from datapipe.convert import job
from datapipe.cpus import PackWorkers
from datapipe.declared import Word, checked
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PackError
from datapipe.index.manifest import UNFINISHED
from datapipe.pack.journal import same_options
from datapipe.pack.pack_dataset import pack_dataset
from datapipe.text.encode import TextEncoder
from datapipe.text.spec import TextSpec

_SHARDS = "shards"  # in the working folder


@checked(PackError)
def pack_arrays(
    raw: str | PathLike[str],
    arrays: str | PathLike[str],
    *,
    image: ImageSpec | None = ImageSpec(),  # noqa: B008  (frozen)
    text: TextSpec | None = None,
    workers: PackWorkers | None = None,
    max_rejects: Word | int = "5%",
    space_check: bool = True,
    lock_check: bool = True,
    **options: Any,
) -> job.ConvertReport:
    """Pack raw image-text data into arrays: `pack_dataset`, and `convert_dataset` of its shards.

    The shards are in the folder's working folder until the arrays are finished, so the disk needs
    room for both. The same command continues what was interrupted.

    Args:
        raw: file or folder of raw data.
        arrays: folder for the arrays.
        image, text: images and tokens of the arrays, as in `convert_dataset`.
        workers, max_rejects, space_check, lock_check: options of both steps.
        options: further options of `pack_dataset`.

    Raises:
        PackError, PlanError, IndexMismatch: as these two do.

    Examples:
        >>> datapipe.pack_arrays("photos/", "arrays/", image=datapipe.ImageSpec(size=224)).samples
        8
    """
    started = time.monotonic()
    out = job.array_folder(arrays)
    common: dict[str, Any] = {
        "workers": workers,
        "max_rejects": max_rejects,
        "space_check": space_check,
        "lock_check": lock_check,
    }
    expected = job.conversion_options(image, None if text is None else TextEncoder(text))
    if (there := job.arrays_at(out)) is not None:
        pack_dataset(raw, out, **common, **options)  # refuses what is not of the same raw data
        if not there.images:
            expected["image"] = {}  # as conversions of texts alone note it
        same_options(out, there.parts[-1].options, expected)
        return job.report_of(there, out, started)
    shards = out / UNFINISHED / _SHARDS
    packed = pack_dataset(raw, shards, **common, **options)
    made = job.convert_dataset(shards, out, image=image, text=text, **common)
    return replace(
        made,
        rejected=packed.rejected + made.rejected,
        reasons={**packed.reasons, **made.reasons},
        examples=(*packed.examples, *made.examples),
        seconds=round(time.monotonic() - started, 3),
    )
