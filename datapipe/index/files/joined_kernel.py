"""Compiled reads of values that are spread over the arrays of many datasets.

Importing this module imports numba, so `joined_array` does it late. Python's work for each array of
each dataset would take longer than all else that is done for a batch.

A table, int64 [2, parts], has the address of each dataset's array, 0 for one that is not open, and
the address of the flags of its blocks that were compared with their checksums, 0 where all were.
Whoever reads so holds the arrays meanwhile. `memory` holds `memory_of` uint64, uint32, uint16 and
uint8. Arguments are few and flat, since to take each of them takes time.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.compiled import compiled
from datapipe.index.files.block_checksums import BLOCK
from datapipe.index.files.memory import START, Memory, memory
from datapipe.index.files.mixture_column import IN_SHARDS, OPEN
from datapipe.index.files.npy import HEADER

# Compiled code holds these values, and numba renews its cache only when this file changes.
_BLOCK, _START, _HEADER = 8192, 4096, 128
_IN_SHARDS, _OPEN = 0, 2
assert (_BLOCK, _START, _HEADER) == (BLOCK, START, HEADER)
assert (_IN_SHARDS, _OPEN) == (IN_SHARDS, OPEN)


@compiled(nogil=False)
def holder(edges: Int64, number: int) -> int:
    """Return the part that holds a number: `edges` is int64 [parts + 1], the first of each."""
    low, high = 0, len(edges) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] <= number:
            low = middle
        else:
            high = middle
    return low


@compiled(nogil=False)
def load(table: Int64, size: int, part: int, index: int, memory: Memory) -> tuple[bool, np.int64]:
    """Return whether a value of `size` bytes of a part can be read, and it."""
    address, flag = table[0, part], table[1, part]
    if address == 0:
        return False, np.int64(0)
    at = np.uint64(address - _START + index * size)
    words, halves, quarters, bytes_ = memory
    if flag != 0 and not bytes_[flag - _START + (index * size + _HEADER) // _BLOCK]:
        return False, np.int64(0)
    if size == 8:
        return True, np.int64(words[at >> np.uint64(3)])
    if size == 4:
        return True, np.int64(halves[at >> np.uint64(2)])
    if size == 2:
        return True, np.int64(quarters[at >> np.uint64(1)])
    return True, np.int64(bytes_[at])


@compiled(nogil=False)
def load_span(
    table: Int64, edges: Int64, number: int, memory: Memory
) -> tuple[bool, int, np.int64, np.int64]:
    """Return whether an offset and the next one can be read, the part of the offset, and both."""
    if number < 0 or number >= edges[-1]:
        return False, 0, np.int64(0), np.int64(0)
    part = holder(edges, number)
    good, start = load(table, 8, part, number - edges[part], memory)
    better, stop = load(table, 8, part, number - edges[part] + 1, memory)
    return good and better, part, start, stop


@compiled(nogil=False)
def read(
    numbers: Int64,
    edges: Int64,
    end: int,
    last: int,
    table: Int64,
    size: int,
    shifts: Int64,
    codes: Int64,
    memory: Memory,
    found: Int64,
) -> bool:
    """Read values out of joined arrays.

    Args:
        numbers: int64 [n], index of each value.
        edges: int64 [parts + 1], index of the first value of each part.
        end: no index is as large.
        last: part from which later ones are empty.
        size: bytes of a value.
        shifts: int64 [parts], added to values; [0] for nothing.
        codes: int64 [parts, ...], new values by old ones; [0, 0] for these.
        found: int64 [n], filled. Of a signed type the lowest bytes are right.

    Returns:
        Whether all were read. Else an index is out of range, a part is not open, or a block was
        not compared.
    """
    for place in range(len(numbers)):
        number = numbers[place]
        if number < 0 or number >= end:
            return False
        part = min(holder(edges, number), last)
        good, value = load(table, size, part, number - edges[part], memory)
        if not good:
            return False
        if len(codes):
            value = codes[part, value]
        if len(shifts):
            value += shifts[part]
        found[place] = value
    return True


@compiled(nogil=False)
def read_spans(
    numbers: Int64, edges: Int64, table: Int64, shifts: Int64, memory: Memory, found: Int64
) -> bool:
    """Read joined offsets, and by how much those that follow are larger.

    Args:
        numbers, edges, shifts: as in `read`.
        found: int64 [2, n], filled with offsets and differences.

    Returns:
        As `read`.
    """
    for place in range(len(numbers)):
        good, part, start, stop = load_span(table, edges, numbers[place], memory)
        if not good:
            return False
        found[0, place] = start + shifts[part]
        found[1, place] = stop - start
    return True


@compiled(nogil=False)
def locate(
    samples: Int64,
    counts: Int64,
    chosen: Bools,
    edges: Int64,
    tables: Int64,
    codes: Int64,
    are_texts: Bools,
    places: Int64,
    size: int,
    compared: bool,
    memory: Memory,
    there: Bools,
    slots: Int64,
    texts: Int64,
) -> int:
    """Find images and texts of samples in arrays.

    Args:
        samples, counts: int64 [n], numbers of samples and of their images that are wanted.
        chosen: bool [n], samples that are looked for.
        edges: int64 [3, parts + 1], of samples, members and images.
        tables: int64 [5, 2, parts], of sample_member, sample_image, member_offset, member_size and
            member_ext.
        codes: of extensions, int64 [parts, ...]; `are_texts` says which of the new ones are texts.
        places, size: of `MixtureArrays`.
        compared: whether images and texts must have been compared.
        there: bool [n], filled: whether a sample is one that is looked for, in arrays.
        slots: int64 [2, n + 1], filled with the index in memory of the first image of each sample,
            and with the index of its first text.
        texts: int64 [4, m], filled for each text with its number among the members, its index in
            memory, its bytes, and the code of its extension.

    Returns:
        The number of texts, which is above m if there is too little room for them. Else -1: a part
        is not open, something was not compared, or a file ends too early.
    """
    sample_edges, member_edges, image_edges = edges[0], edges[1], edges[2]
    members, images = tables[0], tables[1]
    offsets, sizes, extensions = tables[2], tables[3], tables[4]
    starts, bounds = slots[0], slots[1]
    found = 0
    for slot in range(len(samples)):
        bounds[slot] = found
        there[slot] = False
        if not chosen[slot]:
            continue
        if samples[slot] < 0 or samples[slot] >= sample_edges[-1]:
            return -1
        part = holder(sample_edges, samples[slot])
        if places[6, part] == _IN_SHARDS:
            continue
        if places[6, part] != _OPEN:
            return -1
        there[slot] = True
        own = samples[slot] - sample_edges[part]
        good, image = load(images, 8, part, own, memory)
        if not good:
            return -1
        image += image_edges[part]
        if size and counts[slot] and image + counts[slot] > places[4, part]:
            return -1
        starts[slot] = places[0, part] + image * size
        if compared and size:
            for number in range(image, image + counts[slot]):
                if not memory[3][places[2, part] + number]:
                    return -1
        good, _, first, last = load_span(members, sample_edges, samples[slot], memory)
        if not good:
            return -1
        for member in range(first, last):
            good, code = load(extensions, 2, part, member, memory)
            if not good:
                return -1
            code = codes[part, code]
            if not are_texts[code]:
                continue
            if compared and not memory[3][places[3, part] + member_edges[part] + member]:
                return -1
            good, offset = load(offsets, 8, part, member, memory)
            better, length = load(sizes, 8, part, member, memory)
            if not (good and better) or offset + length > places[5, part]:
                return -1
            if found < texts.shape[1]:
                texts[0, found] = member_edges[part] + member
                texts[1, found] = places[1, part] + offset
                texts[2, found] = length
                texts[3, found] = code
            found += 1
    bounds[len(samples)] = found
    return found


@compiled(nogil=False)
def find_texts(
    numbers: Int64,
    edges: Int64,
    tables: Int64,
    memory: Memory,
    found: Int64,
) -> bool:
    """Find the texts of samples in memory.

    Args:
        numbers: int64 [n], of the samples.
        edges: int64 [parts + 1], number of the first sample of each part.
        tables: int64 [2, 2, parts], of the texts' offsets and bytes.
        found: int64 [2, n], filled with the begin and the end of each text in `memory_of` uint8.

    Returns:
        As `read`.
    """
    offsets, data = tables[0], tables[1]
    for place in range(len(numbers)):
        good, part, start, stop = load_span(offsets, edges, numbers[place], memory)
        address, flag = data[0, part], data[1, part]
        if not good or address == 0:
            return False
        if flag != 0:
            for block in range((start + _HEADER) // _BLOCK, (stop - 1 + _HEADER) // _BLOCK + 1):
                if not memory[3][flag - _START + block]:
                    return False
        found[0, place] = start + address - _START
        found[1, place] = stop + address - _START
    return True


def _prepare() -> None:
    """Compile for the usual types, or take what was compiled: no batch should wait for it."""
    numbers, edges, table = np.zeros(0, np.int64), np.zeros(2, np.int64), np.zeros((2, 1), np.int64)
    codes, bools = np.zeros((1, 1), np.int64), np.zeros(0, bool)
    read(numbers, edges, 0, 0, table, 8, numbers, codes, memory(), numbers)
    read_spans(numbers, edges, table, numbers, memory(), table)
    find_texts(numbers, edges, np.stack([table, table]), memory(), table)
    tables, places = np.zeros((5, 2, 1), np.int64), np.zeros((7, 1), np.int64)
    edges = np.zeros((3, 2), np.int64)
    locate(
        *(numbers, numbers, bools, edges, tables, codes, bools, places, 0, True, memory()),
        *(bools, table, table),
    )


_prepare()
