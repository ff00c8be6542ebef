"""Samples are laid out whole, however they fall on the segments of memory."""

import tarfile
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import DecodeError
from datapipe.pack.input.raw_sample import Blob, InlineBlob
from datapipe.pack.workers.write_buffer import WriteBuffer

SEGMENT = 4096


class Segments:
    """Small segments, and all data that was sent."""

    def __init__(self):
        self.sent = []

    def take(self):
        return memoryview(bytearray(b"\xff" * SEGMENT))

    def send(self, data, own):
        assert own or len(data) <= SEGMENT
        self.sent.append(bytes(data))


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3 * SEGMENT), min_size=1, max_size=4), st.booleans()),
        max_size=12,
    )
)
def test_kept_samples_follow_each_other_and_discarded_ones_leave_no_trace(samples):
    segments = Segments()
    arena = WriteBuffer(segments.take, segments.send)
    expected = []
    for number, (sizes, keep) in enumerate(samples):
        arena.begin()
        for member, size in enumerate(sizes):
            name, content = f"{number}.{member}", bytes([number % 251 + 1]) * size
            view = arena.read(InlineBlob(content, name))
            place = arena.close_member(name, size)
            assert place % 512 == 0
            assert bytes(view) == content
            if keep:
                expected.append((name, content))
        if keep:
            start, length = arena.commit()
            assert length == sum(512 + -(-size // 512) * 512 for size in sizes)
            assert start % 512 == 0
        else:
            arena.discard()
    arena.flush()
    with tarfile.open(fileobj=BytesIO(b"".join(segments.sent) + bytes(1024))) as tar:
        assert [(info.name, tar.extractfile(info).read()) for info in tar] == expected


def test_a_member_may_be_replaced_by_another_of_any_size():
    segments = Segments()
    arena = WriteBuffer(segments.take, segments.send)
    for size in (10, 5000, 0):
        arena.begin()
        arena.put(b"x" * 1000)
        view = arena.replace(b"y" * size)
        arena.close_member("a.jpg", len(view))
        arena.commit()
    arena.flush()
    with tarfile.open(fileobj=BytesIO(b"".join(segments.sent) + bytes(1024))) as tar:
        assert [tar.extractfile(info).read() for info in tar] == [b"y" * 10, b"y" * 5000, b""]


def test_a_file_that_ends_too_early_is_told(tmp_path):
    (tmp_path / "a").write_bytes(b"short")
    arena = WriteBuffer(Segments().take, Segments().send)
    arena.begin()
    with pytest.raises(DecodeError, match="ends too early"):
        arena.read(Blob(tmp_path / "a", 0, 10))
