"""Packer, compiled by numba.

Up to `window` samples wait at a time. The oldest of them opens each pack, so nothing waits for
long; once no more samples arrive, the longest does. Then:

- While even two of the longest waiting samples would fit behind it, the oldest is taken.
- The rest is filled at once: of all sets of some waiting samples, one whose lengths come closest to
  the space left. This is the subset-sum problem, solved by dynamic programming over a bitset of
  reachable totals (Pisinger: "Dynamic programming on the word RAM", Algorithmica 35, 2003). Long
  samples come first and the search ends as soon as the space can be filled exactly, so long
  samples go early and short ones stay for later finishes.

Filling bin by bin, each with a fixed first item and then as fully as the items allow, is the
heuristic MBS' of Fleszar and Hindi ("New heuristics for one-dimensional bin-packing", Computers
& Operations Research 29, 2002); the window and the oldest as the first item make it work on a
stream.

If samples have images, that set is compared with two others that fill the space too, found with
some samples rich in images, or poor in them, in front. The one taken brings the pack closest to the
mean number of images, so that ranks get packs of similar work.

If the set has more images than allowed, the search is repeated for the set with the fewest of each
total. If it has more samples than allowed, they are taken one by one, the longest that fits first.

A waiting sample is a key: its length in the high bits, its index in the order, reversed, in the low
ones, so that descending keys are descending lengths with older samples first.

Importing this module imports numba, so `packing` does it late. The first call in an environment
compiles for some seconds (`datapipe.compiled`). `tests/plan/packing_oracle.py` is the same in plain
Python, bit for bit.

Loops that are to be vectorised run over slices, since numba checks the sign of a computed index.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datapipe.array_types import Int8, Int16, Int64, UInt64
from datapipe.compiled import compiled

RICH, POOR = np.int8(1), np.int8(-1)

UNLIMITED = 1 << 60
"""Value of no limit; above any sum of images."""

HORIZON = 2
"""The oldest is taken while this many of the longest waiting sample still fit behind it.

The search then has several samples to choose from, and little space to search.
"""

LONGEST_SEARCH = 1 << 18
"""Space in tokens up to which sets are searched; above, the longest that fits is taken."""

SEARCHED = 64
"""Waiting samples, evenly spread over all lengths, that a search looks at.

More take longer and fill no better: the others are there for later packs.
"""

STEERED = (8, 32)
"""Candidates rich or poor in images that are put in front, in each of the further searches."""

STEERING_ROOM = 2
"""Packs get similar numbers of images if as many as this times the mean are allowed.

If the limit of images is often reached, filling packs takes all the choice there is.
"""

DENSITY_BITS = 12
"""Binary places to which images per token are known."""

MOST_IMAGES = (1 << 14) - 2
"""The limit of images in that search, so that two numbers above it still add up in 16 bits."""


def mean_of_images(lengths: Int64, images: Int64, capacity: int) -> int:
    """Return the mean number of images of a full pack."""
    return int(images.sum()) * capacity // int(lengths.sum())


def image_kinds(lengths: Int64, images: Int64) -> Int8:
    """Return `RICH` for samples of over twice the mean images per token, `POOR` below half."""
    density = (images << DENSITY_BITS) // lengths
    mean = (int(images.sum()) << DENSITY_BITS) // int(lengths.sum())
    return (density > 2 * mean) * RICH + (2 * density < mean) * POOR


class _Block(NamedTuple):
    """Samples of a block, and memory that each search overwrites."""

    images: Int64
    kinds: Int8
    shift: int  # of the length in a key
    mask: int  # of the index in a key
    rows: UInt64
    light_rows: Int16
    candidates: Int64
    chosen: Int64


@compiled()
def _find(window: Int64, count: int, key: int) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if window[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def _insert(window: Int64, count: int, key: int) -> None:
    at = count
    while at > 0 and window[at - 1] > key:
        window[at] = window[at - 1]
        at -= 1
    window[at] = key


@compiled()
def _remove(window: Int64, count: int, key: int) -> None:
    for at in range(_find(window, count, key), count - 1):
        window[at] = window[at + 1]


@compiled()
def _candidates(block: _Block, window: Int64, count: int, left: int, left_images: int) -> int:
    found, number = block.candidates, 0
    for index in range(_find(window, count, (left + 1) << block.shift) - 1, -1, -1):
        if block.images[block.mask - (window[index] & block.mask)] <= left_images:
            found[number] = window[index]
            number += 1
    step = max(-(-number // SEARCHED), 1)
    for index in range(step, number, step):
        found[index // step] = found[index]
    return -(-number // step)


@compiled()
def _exact(block: _Block, candidates: Int64, count: int, left: int, chosen: Int64) -> int:
    # A row has as many zero words before it as it has words, from which shifts may read.
    rows, words = block.rows, (left >> 6) + 1
    pad = rows.shape[1] // 2
    one = np.uint64(1)
    rows[0, pad : pad + words] = 0
    rows[0, pad] = 1
    used = 0
    goal, bit = pad + (left >> 6), np.uint64(left & 63)
    while used < count:
        length = candidates[used] >> block.shift
        whole, part = length >> 6, np.uint64(length & 63)
        rest = np.uint64(63) - part
        old = rows[used, pad : pad + words]
        low = rows[used, pad - whole : pad - whole + words]
        lower = rows[used, pad - whole - 1 : pad - whole - 1 + words]
        new = rows[used + 1, pad : pad + words]
        for word in range(words):
            new[word] = old[word] | (low[word] << part) | ((lower[word] >> one) >> rest)
        used += 1
        if (rows[used, goal] >> bit) & one:
            break
    total = left
    while not (rows[used, pad + (total >> 6)] >> np.uint64(total & 63)) & one:
        total -= 1
    number = 0
    while total > 0:
        word, bit = pad + (total >> 6), np.uint64(total & 63)
        while (rows[used - 1, word] >> bit) & one:
            used -= 1
        used -= 1
        chosen[number] = candidates[used]
        number += 1
        total -= candidates[used] >> block.shift
    return number


@compiled()
def _lightest(block: _Block, count: int, left: int, left_images: int) -> int:
    rows, candidates = block.light_rows, block.candidates
    limit = min(left_images, MOST_IMAGES)
    rows[0, : left + 1] = limit + 1
    rows[0, 0] = 0
    used = 0
    while used < count:
        key = candidates[used]
        length = key >> block.shift
        more = np.int16(min(block.images[block.mask - (key & block.mask)], limit + 1))
        rows[used + 1, :length] = rows[used, :length]
        old = rows[used, length : left + 1]
        lower = rows[used, : left + 1 - length]
        new = rows[used + 1, length : left + 1]
        for total in range(new.size):
            new[total] = min(old[total], np.int16(lower[total] + more))
        used += 1
        if rows[used, left] <= limit:
            break
    total = left
    while rows[used, total] > limit:
        total -= 1
    number = 0
    while total > 0:
        while rows[used - 1, total] == rows[used, total]:
            used -= 1
        used -= 1
        block.chosen[number] = candidates[used]
        total -= candidates[used] >> block.shift
        number += 1
    return number


@compiled()
def _greedy(block: _Block, count: int, left: int, left_images: int, left_samples: int) -> int:
    number = 0
    for key in block.candidates[:count]:
        length, carried = key >> block.shift, block.images[block.mask - (key & block.mask)]
        if length <= left and carried <= left_images and number < left_samples:
            left -= length
            left_images -= carried
            block.chosen[number] = key
            number += 1
    return number


@compiled()
def _steered(block: _Block, count: int, left: int, wanted: int, number: int) -> int:
    candidates, mask = block.candidates, block.mask
    had = _total_images(block, block.chosen, number)
    kind = RICH if had < wanted else POOR
    tried = np.empty(count, np.int64)
    found = np.empty(count, np.int64)
    for size in STEERED:
        if had == wanted or (had < wanted) != (kind == RICH):
            break
        fronts = 0
        for index in range(count):
            if fronts == size:
                break
            if block.kinds[mask - (candidates[index] & mask)] == kind:
                tried[fronts] = candidates[index]
                fronts += 1
        if fronts == 0:
            break
        filled, passed = fronts, 0
        for index in range(count):
            if passed < fronts and block.kinds[mask - (candidates[index] & mask)] == kind:
                passed += 1
            else:
                tried[filled] = candidates[index]
                filled += 1
        found_number = _exact(block, tried, filled, left, found)
        carried = _total_images(block, found, found_number)
        full = _total_length(block, found, found_number) == left
        if full and abs(carried - wanted) < abs(had - wanted):
            block.chosen[:found_number] = found[:found_number]
            number, had = found_number, carried
    return number


@compiled()
def _finish(
    block: _Block,
    count: int,
    left: int,
    left_images: int,
    left_samples: int,
    wanted: int,
    steered: bool,
) -> int:
    number = _exact(block, block.candidates, count, left, block.chosen)
    if steered and _total_length(block, block.chosen, number) == left:
        number = _steered(block, count, left, wanted, number)
    carried = _total_images(block, block.chosen, number)
    if number <= left_samples and carried <= left_images:
        return number
    if carried > left_images:
        number = _lightest(block, count, left, left_images)
        if 0 < number <= left_samples:
            return number
    return _greedy(block, count, left, left_images, left_samples)


@compiled()
def _total_length(block: _Block, keys: Int64, number: int) -> int:
    total = 0
    for key in keys[:number]:
        total += key >> block.shift
    return total


@compiled()
def _total_images(block: _Block, keys: Int64, number: int) -> int:
    total = 0
    for key in keys[:number]:
        total += block.images[block.mask - (key & block.mask)]
    return total


def pack(
    lengths: Int64, images: Int64, capacity: int, window: int, max_images: int, max_samples: int
) -> tuple[Int64, Int64]:
    """Put samples into packs; all arguments are valid, see `packing.pack_units`.

    `lengths` and `images` are int64 [n]; zeros ignore images, `UNLIMITED` ignores a limit. The
    result is the order, int64 [n], and offsets, int64 [packs + 1].
    """
    kinds = image_kinds(lengths, images)
    mean = mean_of_images(lengths, images, capacity)
    return _pack(lengths, images, capacity, window, max_images, max_samples, kinds, mean)


@compiled()
def _pack(
    lengths: Int64,
    images: Int64,
    capacity: int,
    window_size: int,
    max_images: int,
    max_samples: int,
    kinds: Int8,
    mean_images: int,
) -> tuple[Int64, Int64]:
    limited = min(max_images, max_samples) < UNLIMITED
    shift = 1
    while lengths.size >> shift:
        shift += 1
    samples = lengths.size
    mask = (1 << shift) - 1
    window = np.empty(window_size, np.int64)
    pending = arrived = oldest = 0
    taken = np.zeros(samples, np.bool_)
    order = np.empty(samples, np.int64)
    offsets = np.zeros(samples + 1, np.int64)
    packs = placed = 0
    space = min(capacity, LONGEST_SEARCH)
    words = (space >> 6) + 1
    rows = np.zeros((SEARCHED + 1, 2 * words + 2), np.uint64)
    light_rows = np.empty((SEARCHED + 1 if limited else 0, space + 1), np.int16)
    candidates = np.empty(window_size, np.int64)
    chosen = np.empty(SEARCHED, np.int64)
    block = _Block(images, kinds, shift, mask, rows, light_rows, candidates, chosen)
    steered = mean_images > 0 and STEERING_ROOM * mean_images <= max_images
    while placed < samples:
        left, left_images, left_samples = capacity, max_images, max_samples
        while left_samples > 0:
            while pending < window_size and arrived < samples:
                _insert(window, pending, (lengths[arrived] << shift) | (mask - arrived))
                pending += 1
                arrived += 1
            if pending == 0 or window[0] >> shift > left:
                break
            while taken[oldest]:
                oldest += 1
            longest = window[pending - 1]
            number, opens = 1, left_samples == max_samples
            room = left - lengths[oldest]
            if opens and arrived == samples:
                chosen[0] = longest
            elif opens or (not limited and room >= HORIZON * (longest >> shift)):
                chosen[0] = (lengths[oldest] << shift) | (mask - oldest)
            else:
                count = _candidates(block, window, pending, left, left_images)
                if count == 0:
                    break
                chosen[0] = candidates[0]
                if left <= LONGEST_SEARCH:
                    wanted = mean_images - (max_images - left_images)
                    number = _finish(block, count, left, left_images, left_samples, wanted, steered)
            for key in chosen[:number]:
                sample = mask - (key & mask)
                _remove(window, pending, key)
                pending -= 1
                taken[sample] = True
                order[placed] = sample
                placed += 1
                left -= lengths[sample]
                left_images -= images[sample]
                left_samples -= 1
        packs += 1
        offsets[packs] = placed
    return order, offsets[: packs + 1].copy()
