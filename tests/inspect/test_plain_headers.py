"""Headers that are compared many at a time: a whole one is plain, and each byte counts."""

import numpy as np
import pytest

from datapipe.inspect.plain_headers import are_plain
from datapipe.pack.writers.ustar import BLOCK, MAX_NAME, member_header

MEMBERS = (("000000000.jpg", 8**6 + 5), ("000000000.json", 0), ("000000001.jpg", 1023))


def plain(between, *, own):
    """Return what is said of the members, each of which has padding before its header."""
    starts = np.array([0, 2 * BLOCK - 5, 3 * BLOCK - 5])
    names = [list(name.encode().ljust(MAX_NAME, b"\0")) for name, _ in MEMBERS]
    sizes = np.array([size for _, size in MEMBERS])
    return are_plain(between, starts, np.array(names, np.uint8), sizes, own=own).tolist()


@pytest.mark.parametrize("own", [True, False])
def test_each_byte_of_a_header_and_of_padding_counts(own):
    headers = [member_header(*member) for member in MEMBERS]
    between = bytearray(headers[0] + bytes(BLOCK - 5) + headers[1] + headers[2])
    assert plain(between, own=own) == [True] * 3
    for at in range(len(between)):
        between[at] ^= 1
        found = plain(between, own=own)
        between[at] ^= 1
        harmed = 0 if at < BLOCK else 1 if at < 3 * BLOCK - 5 else 2
        assert [number for number, right in enumerate(found) if not right] == [harmed]
