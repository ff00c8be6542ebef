"""Oracle of the packer: the same algorithm in plain Python, with its own integers and lists."""

from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np

from datapipe.array_types import Int64
from datapipe.plan.packing_kernel import (
    HORIZON,
    LONGEST_SEARCH,
    MOST_IMAGES,
    POOR,
    RICH,
    SEARCHED,
    STEERED,
    STEERING_ROOM,
    UNLIMITED,
    image_kinds,
    mean_of_images,
)


def pack(
    lengths: Int64,
    images: Int64,
    capacity: int,
    window: int,
    max_images: int,
    max_samples: int,
) -> tuple[Int64, Int64]:
    """Return what `packing_kernel.pack` does."""
    limited = min(max_images, max_samples) < UNLIMITED
    state = _Waiting(lengths, images, window)
    mean_images = mean_of_images(lengths, images, capacity)
    steered = mean_images > 0 and STEERING_ROOM * mean_images <= max_images
    offsets = [0]
    while state.refill():
        left, left_images, left_samples = capacity, max_images, max_samples
        while left_samples > 0 and state.refill() and state.keys[0] >> state.shift <= left:
            longest = state.keys[-1] >> state.shift
            oldest = state.oldest()
            if left_samples == max_samples:
                keys = [oldest if state.arriving else state.keys[-1]]
            elif not limited and left - (oldest >> state.shift) >= HORIZON * longest:
                keys = [oldest]
            else:
                keys = state.candidates(left, left_images if limited else UNLIMITED)
                if not keys:
                    break
                if left > LONGEST_SEARCH:
                    del keys[1:]
                else:
                    wanted = mean_images - (max_images - left_images) if steered else None
                    keys = _finish(state, keys, left, left_images, left_samples, wanted)
            left -= state.total_length(keys)
            left_images -= state.total_images(keys)
            left_samples -= len(keys)
            state.take(keys)
        offsets.append(len(state.order))
    return np.array(state.order, np.int64), np.array(offsets, np.int64)


class _Waiting:
    """Samples that wait for a pack, and those that were packed."""

    def __init__(self, lengths: Int64, images: Int64, window: int) -> None:
        self.images: list[int] = images.tolist()
        self.kinds: list[int] = image_kinds(lengths, images).tolist()
        self.shift = len(lengths).bit_length()
        self.mask = (1 << self.shift) - 1
        self.keys: list[int] = []  # ascending
        self.order: list[int] = []
        self._all: list[int] = [
            length << self.shift | (self.mask - index)
            for index, length in enumerate(lengths.tolist())
        ]
        self._window = window
        self._arrived = 0
        self._oldest = 0
        self._taken = bytearray(len(lengths))

    @property
    def arriving(self) -> bool:
        return self._arrived < len(self._all)

    def refill(self) -> bool:
        """Let samples arrive until the window is full. Return whether any wait."""
        room = self._window - len(self.keys)
        arrivals = self._all[self._arrived : self._arrived + room]
        for key in arrivals:
            insort(self.keys, key)
        self._arrived += len(arrivals)
        return bool(self.keys)

    def oldest(self) -> int:
        while self._taken[self._oldest]:
            self._oldest += 1
        return self._all[self._oldest]

    def candidates(self, left: int, left_images: int) -> list[int]:
        """Return the keys of samples that fit, the longest first, at most `SEARCHED`."""
        keys = self.keys[: bisect_left(self.keys, (left + 1) << self.shift)][::-1]
        if left_images < UNLIMITED:
            keys = [key for key in keys if self.total_images([key]) <= left_images]
        return keys[:: -(-len(keys) // SEARCHED) or 1]

    def take(self, keys: list[int]) -> None:
        for key in keys:
            del self.keys[bisect_left(self.keys, key)]
            sample = self.mask - (key & self.mask)
            self._taken[sample] = True
            self.order.append(sample)

    def total_length(self, keys: list[int]) -> int:
        return sum(key >> self.shift for key in keys)

    def total_images(self, keys: list[int]) -> int:
        return sum([self.images[self.mask - (key & self.mask)] for key in keys])


def _finish(
    state: _Waiting,
    candidates: list[int],
    left: int,
    left_images: int,
    left_samples: int,
    wanted: int | None,
) -> list[int]:
    """Return the candidates that fill the space best within the limits."""

    def allowed(keys: list[int]) -> bool:
        return len(keys) <= left_samples and state.total_images(keys) <= left_images

    chosen = _exact(candidates, left, state.shift)
    if wanted is not None and state.total_length(chosen) == left:
        chosen = _steered(state, candidates, chosen, left, wanted)
    if allowed(chosen):
        return chosen
    if state.total_images(chosen) > left_images:
        chosen = _lightest(state, candidates, left, left_images)
        if chosen and allowed(chosen):
            return chosen
    return _greedy(candidates, left, state.shift, allowed)


def _exact(candidates: list[int], left: int, shift: int) -> list[int]:
    """Return candidates whose lengths add up closest to `left`, from as few as suffice."""
    mask = (1 << (left + 1)) - 1
    row = 1  # bit t: some of the candidates so far have t tokens in all
    rows = [row]
    for key in candidates:
        row |= (row << (key >> shift)) & mask
        rows.append(row)
        if row >> left:
            break
    total = row.bit_length() - 1
    used = len(rows) - 1
    chosen = []
    while total > 0:
        while rows[used - 1] >> total & 1:
            used -= 1
        used -= 1
        chosen.append(candidates[used])
        total -= candidates[used] >> shift
    return chosen


def _steered(
    state: _Waiting, candidates: list[int], chosen: list[int], left: int, wanted: int
) -> list[int]:
    """Return the set closest to `wanted` images, of some that fill the space exactly."""
    images = state.total_images(chosen)
    kind = RICH if images < wanted else POOR
    of_kind = [key for key in candidates if state.kinds[state.mask - (key & state.mask)] == kind]
    for number in STEERED:
        if not of_kind or images == wanted or (images < wanted) != (kind == RICH):
            break
        front = of_kind[:number]
        others = set(candidates).difference(front)
        tried = front + [key for key in candidates if key in others]
        found = _exact(tried, left, state.shift)
        if state.total_length(found) == left:
            images_found = state.total_images(found)
            if abs(images_found - wanted) < abs(images - wanted):
                chosen, images = found, images_found
    return chosen


def _lightest(state: _Waiting, candidates: list[int], left: int, left_images: int) -> list[int]:
    """Return what `_exact` does among the sets of at most `left_images`."""
    limit = min(left_images, MOST_IMAGES)
    row = np.full(left + 1, limit + 1, np.int16)  # fewest images of any set of each total
    row[0] = 0
    rows = [row]
    for key in candidates:
        length = key >> state.shift
        images = np.int16(min(state.total_images([key]), limit + 1))
        more = row[: left + 1 - length] + images
        row = row.copy()
        np.minimum(row[length:], more, out=row[length:])
        rows.append(row)
        if row[left] <= limit:
            break
    total = int(np.flatnonzero(row <= limit)[-1])
    used = len(rows) - 1
    chosen = []
    while total > 0:
        while rows[used - 1][total] == rows[used][total]:
            used -= 1
        used -= 1
        chosen.append(candidates[used])
        total -= candidates[used] >> state.shift
    return chosen


def _greedy(
    candidates: list[int], left: int, shift: int, allowed: Callable[[list[int]], bool]
) -> list[int]:
    chosen: list[int] = []
    for key in candidates:
        if key >> shift <= left and allowed([*chosen, key]):
            chosen.append(key)
            left -= key >> shift
    return chosen
