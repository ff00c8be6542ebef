"""Which members are a sample: nothing is merged that other readers would tell apart."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys

from datapipe.index.tar.grouping import group_members
from datapipe.index.tar.headers import TarMember
from tests.case_files import cases


@pytest.mark.parametrize(("names", "samples", "left_out"), cases("index/grouping"))
def test_a_member_is_in_a_sample_or_left_out_by_name(names, samples, left_out):
    members = [TarMember(name, number, 1) for number, name in enumerate(names.split())]
    found = group_members(members)
    numbers = {group.name: [member.offset for member in group.members] for group in found.samples}
    told = (f"{name}:{','.join(map(str, members))}" for name, members in numbers.items())
    assert " ".join(told) == samples
    assert " ".join(name for name, _ in found.left_out) == left_out
    assert all(reason for _, reason in found.left_out)


names = st.builds(
    lambda key, ext: f"{key}.{ext}", st.sampled_from("abc"), st.sampled_from(["jpg", "txt", "json"])
)


@settings(max_examples=300)
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


@settings(max_examples=200)
@given(st.lists(st.sampled_from("abc"), max_size=8), st.sampled_from(["jpg txt", "jpg", "a b c"]))
def test_samples_of_the_same_kind_are_those_of_webdataset(keys, exts):
    """Whatever keys come again, as long as no two neighbours have the same, which it refuses."""
    listed = [f"{key}.{ext}" for key, _ in groupby(keys) for ext in exts.split()]
    theirs = group_by_keys({"fname": name, "data": b"", "__url__": ""} for name in listed)
    ours = group_members([TarMember(name, n, 1) for n, name in enumerate(listed)])
    assert [group.key for group in ours.samples] == [sample["__key__"] for sample in theirs]
    assert ours.left_out == []
