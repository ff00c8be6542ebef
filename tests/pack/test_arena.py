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


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3 * SEGMENT), min_size=1, max_size=4),
            st.sampled_from(["keep", "discard", "replace"]),
        ),
        max_size=12,
    )
)
def test_kept_samples_follow_each_other_and_discarded_ones_leave_no_trace(samples):
    sent = []

    def send(data, own):
        assert own or len(data) <= SEGMENT
        sent.append(bytes(data))

    arena = WriteBuffer(lambda: memoryview(bytearray(b"\xff" * SEGMENT)), send)
    expected = []
    for number, (sizes, fate) in enumerate(samples):
        arena.begin()
        for member, size in enumerate(sizes):
            name, content = f"{number}.{member}", bytes([number % 251 + 1]) * size
            if fate == "replace":
                arena.put(b"x" * 1000)
                view = arena.replace(content)
            else:
                view = arena.read(blob := InlineBlob(content, name))
                assert blob.read() == content  # as readers of texts take it
            assert bytes(view) == content
            assert arena.close_member(name, size) % 512 == 0
            if fate != "discard":
                expected.append((name, content))
        if fate == "discard":
            arena.discard()
        else:
            start, length = arena.commit()
            assert length == sum(512 + -(-size // 512) * 512 for size in sizes)
            assert start % 512 == 0
    arena.flush()
    with tarfile.open(fileobj=BytesIO(b"".join(sent) + bytes(1024))) as tar:
        assert [(info.name, tar.extractfile(info).read()) for info in tar] == expected


def test_a_file_that_ends_too_early_is_told(tmp_path):
    (tmp_path / "a").write_bytes(b"short")
    with pytest.raises(DecodeError, match="ends too early"):
        Blob(tmp_path / "a", 0, 10).read()
