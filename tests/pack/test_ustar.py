"""Headers of our shards, field by field, against those that Python's `tarfile` writes."""

import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datapipe.errors import SampleError
from datapipe.pack.writers.ustar import BLOCK, MAX_SIZE, member_header

names = st.from_regex(r"[A-Za-z0-9_+=@%-][A-Za-z0-9_+=@%.-]{0,99}", fullmatch=True)


@given(names, st.integers(0, MAX_SIZE))
@example("x" * 100, MAX_SIZE)
@example("0", 0)
def test_every_field_is_what_tarfile_writes(name, size):
    """As POSIX.1-2001 has it in "ustar Interchange Format".

    Device numbers mean nothing for a file: tarfile leaves them empty, we write zeros as GNU tar
    does, and the checksum follows.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    ours, theirs = member_header(name, size), info.tobuf(tarfile.USTAR_FORMAT)
    assert len(ours) == BLOCK
    for start, stop in ((0, 148), (154, 329), (345, 512)):  # without both
        assert ours[start:stop] == theirs[start:stop]


@pytest.mark.parametrize(
    "name", ["", "x" * 101, "a b.jpg", "a/b.jpg", "ü.jpg", ".hidden", "a\n.jpg", "a.jpg\n", "a\0"]
)
def test_names_that_some_reader_stumbles_over_are_refused(name):
    with pytest.raises(SampleError, match="ASCII of at most 100 bytes without spaces and slashes"):
        member_header(name, 0)


def test_a_member_of_8_gib_is_refused():
    with pytest.raises(SampleError, match=r"more than a tar member holds \(8 GiB\)"):
        member_header("a.jpg", MAX_SIZE + 1)
