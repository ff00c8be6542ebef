"""What all batches of a loader share; worker processes get a copy of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datapipe.index.dataset import Dataset
from datapipe.loader.images import ImageMaker
from datapipe.loader.keeper import Keeper
from datapipe.loader.tokens import TokenMaker
from datapipe.loader.usertransform import UserTransform
from datapipe.store.arrays import ImageArray
from datapipe.store.protocol import Store

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class BatchMaker:
    """What all batches of a loader share.

    Attributes:
        dataset, store: where samples lie and how to read them.
        arrays: images that lie decoded; None where there are none.
        images: what becomes of images; None leaves them out.
        transform: the user's own; None for none.
        tokens: for texts; None hands them out as they are.
        meta: what the batch carries beside what a model takes.
        seed: of what is random.
        verify: whether members are compared with the checksums taken when they were packed.
        keeper: keeps samples in caches; None for none.
        on_error: "raise", or "skip" to leave a failing sample's slot empty.
        workers: threads that share in a batch; 0 where whoever asks for it makes it.
        ahead: batches that they prepare at a time.
    """

    dataset: Dataset
    store: Store
    arrays: ImageArray | None
    images: ImageMaker | None
    transform: UserTransform | None
    tokens: TokenMaker | None
    meta: tuple[str, ...]
    seed: int
    verify: bool
    keeper: Keeper | None
    on_error: OnError
    workers: int
    ahead: int
