"""Headers of our shards, field by field, against those that Python's `tarfile` writes."""

import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datapipe.errors import SampleError
from datapipe.pack.writers.ustar import BLOCK, MAX_SIZE, member_header

names = st.from_regex(r"[A-Za-z0-9_+=@%-][A-Za-z0-9_+=@%.-]{0,99}", fullmatch=True)

# POSIX.1-2001, "ustar Interchange Format". Device numbers mean nothing for a file: tarfile leaves
# them empty, we write zeros as GNU tar does, and the checksum follows.
FIELDS = {
    "name": (0, 100), "mode": (100, 108), "uid": (108, 116), "gid": (116, 124),
    "size": (124, 136), "mtime": (136, 148), "typeflag": (156, 157), "linkname": (157, 257),
    "magic": (257, 263), "version": (263, 265), "uname": (265, 297), "gname": (297, 329),
    "prefix": (345, 500), "rest": (500, 512),
}  # fmt: skip


def by_tarfile(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


@given(names, st.integers(0, MAX_SIZE))
@example("x" * 100, MAX_SIZE)
@example("0", 0)
def test_every_field_is_what_tarfile_writes(name, size):
    ours, theirs = member_header(name, size), by_tarfile(name, size)
    assert len(ours) == BLOCK
    for field, (start, stop) in FIELDS.items():
        assert ours[start:stop] == theirs[start:stop], field
    assert ours[154:156] == theirs[154:156] == b"\0 "  # how the checksum is closed


@pytest.mark.parametrize(
    "name", ["", "x" * 101, "a b.jpg", "a/b.jpg", "ü.jpg", ".hidden", "a\n.jpg", "a.jpg\n", "a\0"]
)
def test_names_that_some_reader_stumbles_over_are_refused(name):
    with pytest.raises(SampleError, match="is not plain ASCII of at most 100 bytes"):
        member_header(name, 0)


def test_a_member_of_8_gib_is_refused():
    with pytest.raises(SampleError, match=r"more than a tar member holds \(8 GiB\)"):
        member_header("a.jpg", MAX_SIZE + 1)
