"""Names come back sorted, whatever they are, and take little memory."""

import os
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datapipe.pack.input.sorted_names import SortedNames

file_names = st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name)


@given(st.lists(file_names))
@example([b"%d\xff" % (number * 7919 % 66_000) for number in range(66_000)])  # several runs
def test_names_come_back_in_the_order_of_their_bytes(given_names):
    names = SortedNames()
    for name in given_names:
        names.add(os.fsdecode(name))
    assert len(names) == len(given_names)
    assert list(map(os.fsencode, names)) == sorted(given_names)
    assert list(map(os.fsencode, names)) == sorted(given_names)


@pytest.mark.campaign
def test_a_million_names_take_little_memory():
    tracemalloc.start()
    names = SortedNames()
    for number in range(1_000_000):
        names.add(f"{number * 7919 % 1_000_000:09d}.jpg")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20e6
    assert next(iter(names)) == "000000000.jpg"
