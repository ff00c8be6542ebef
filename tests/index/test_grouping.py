"""Which members are a sample: nothing is merged that other readers would tell apart."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys

from datapipe.index.tar.grouping import group_members
from datapipe.index.tar.headers import TarMember


def grouped(names):
    """Names of each sample as numbers of members, and the numbers of those left out."""
    members = [TarMember(name, number, 1) for number, name in enumerate(names.split())]
    found = group_members(members)
    assert all(reason for _, reason in found.left_out)
    samples = {group.name: [m.offset for m in group.members] for group in found.samples}
    return samples, [name for name, _ in found.left_out]


@pytest.mark.parametrize(
    ("names", "samples"),
    [
        ("a.jpg a.txt b.jpg b.txt", {"a": [0, 1], "b": [2, 3]}),
        ("a.jpg b.jpg a.txt b.txt", {"a": [0, 2], "b": [1, 3]}),
        ("a.jpg a.1.jpg a.png a.JPG", {"a": [0, 1, 2, 3]}),
        # The same key again, in a row and far apart.
        ("a.jpg a.txt a.jpg a.txt", {"a": [0, 1], "a#2": [2, 3]}),
        ("a.jpg a.txt a.txt a.jpg", {"a": [0, 1], "a#2": [2, 3]}),
        ("a.jpg a.txt b.txt a.jpg a.txt", {"a": [0, 1], "b": [2], "a#2": [3, 4]}),
        ("a.jpg a.txt b.txt a.png a.txt", {"a": [0, 1], "b": [2], "a#2": [3, 4]}),
        ("a.jpg a.txt a.png a.txt", {"a": [0, 1], "a#2": [2, 3]}),
        ("a.jpg a.png a.txt a.jpg a.png a.txt", {"a": [0, 1, 2], "a#2": [3, 4, 5]}),
        ("a.jpg a.jpg b.jpg a.jpg", {"a": [0], "a#2": [1], "b": [2], "a#3": [3]}),
        ("./a.jpg ./a.txt a.jpg a.txt", {"a": [0, 1], "a#2": [2, 3]}),
    ],
)
def test_every_member_is_in_a_sample(names, samples):
    assert grouped(names) == (samples, [])


@pytest.mark.parametrize(
    ("names", "samples", "left_out"),
    [
        # Nothing repeats as a whole: the first is taken.
        ("a.jpg a.txt a.txt", {"a": [0, 1]}, ["a.txt"]),
        ("a.jpg a.jpg a.txt", {"a": [0, 2]}, ["a.jpg"]),
        ("a.jpg b.jpg a.txt a.txt b.txt", {"a": [0, 2], "b": [1, 4]}, ["a.txt"]),
        # The key comes again with other members.
        ("a.jpg a.txt b.jpg a.jpg", {"a": [0, 1], "b": [2]}, ["a.jpg"]),
        ("a.jpg a.txt b.jpg a.txt", {"a": [0, 1], "b": [2]}, ["a.txt"]),
        ("a.jpg a.txt b.jpg a.jpg a.cls", {"a": [0, 1], "b": [2]}, ["a.jpg", "a.cls"]),
        # To which of two samples does it belong?
        (
            "a.jpg b.jpg a.jpg b.txt a.txt",
            {"a": [0], "b": [1, 3], "a#2": [2]},
            ["a.txt"],
        ),
        # Names with dots, of which each image has a text of its own.
        (
            "p.v1.0.jpg p.v1.0.txt p.v1.1.jpg p.v1.1.txt a.0.jpg a.1.jpg a.txt",
            {"a": [4, 5, 6]},
            ["p.v1.0.jpg", "p.v1.0.txt", "p.v1.1.jpg", "p.v1.1.txt"],
        ),
    ],
)
def test_a_member_that_cannot_be_told_is_left_out_by_name(names, samples, left_out):
    assert grouped(names) == (samples, left_out)


names = st.builds(
    lambda key, ext: f"{key}.{ext}", st.sampled_from("abc"), st.sampled_from(["jpg", "txt", "json"])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(names, max_size=12))
def test_every_member_is_taken_once_or_named(listed):
    members = [TarMember(name, number, 1) for number, name in enumerate(listed)]
    found = group_members(members)
    taken = [member.offset for group in found.samples for member in group.members]
    assert len(taken) == len(set(taken))
    left = [listed[number] for number in range(len(listed)) if number not in set(taken)]
    assert sorted(left) == sorted(name for name, _ in found.left_out)
    for group in found.samples:
        assert len({member.name for member in group.members}) == len(group.members)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=8), st.sampled_from(["jpg txt", "jpg", "a b c"]))
def test_samples_of_the_same_kind_are_those_of_webdataset(keys, exts):
    """Whatever keys come again, as long as no two neighbours have the same, which it refuses."""
    listed = [f"{key}.{ext}" for key, _ in groupby(keys) for ext in exts.split()]
    theirs = group_by_keys({"fname": name, "data": b"", "__url__": ""} for name in listed)
    ours = group_members([TarMember(name, n, 1) for n, name in enumerate(listed)])
    assert [group.key for group in ours.samples] == [sample["__key__"] for sample in theirs]
    assert ours.left_out == []
