"""Memory in which samples are laid out one after the other, as they will stand in a shard.

Files are read straight into it, so nothing is copied before it is written. The memory comes in
segments of fixed size. A sample that does not fit into the rest of a segment moves to the next, and
one larger than a segment gets memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from datapipe.pack.input.raw_sample import Blob, InlineBlob
from datapipe.pack.writers.ustar import BLOCK, member_header, padding

_NONE = memoryview(b"")


class WriteBuffer:
    """Buffer of tar members; `begin`, `commit` and `discard` bracket a sample.

    `take` returns a segment to fill, and may wait for one that was sent away. `send` receives the
    data of whole samples, and whether it is outside of the segments.
    """

    def __init__(
        self, take: Callable[[], memoryview], send: Callable[[memoryview, bool], None]
    ) -> None:
        self._take = take
        self._send = send
        self._memory = _NONE
        self._spare = _NONE  # segment kept while a large sample has memory of its own
        self._sample = 0  # offset of the sample
        self._member = 0  # offset of the member that is being laid out
        self._end = 0

    @property
    def _is_own(self) -> bool:
        """True if the memory is a large sample's own, not a segment."""
        return bool(self._spare)

    def begin(self) -> None:
        self._sample = self._end

    def commit(self) -> tuple[int, int]:
        """End a sample; return its offset in the segment and its size, in bytes."""
        return self._sample, self._end - self._sample

    def discard(self) -> None:
        self._end = self._sample
        if self._is_own and not self._sample:
            self._memory, self._spare = self._spare, _NONE

    def flush(self) -> None:
        if self._end:
            data, own = self._memory[: self._end], self._is_own
            self._memory, self._spare, self._end = self._spare, _NONE, 0
            self._send(data, own)

    def read(self, blob: Blob | InlineBlob) -> memoryview:
        """Read data behind the space for a header; `close_member` completes the member."""
        return (
            self.put(blob.data) if isinstance(blob, InlineBlob) else blob.read_into(self._reserve)
        )

    def put(self, data: bytes) -> memoryview:
        """Lay out data that is in memory; `close_member` completes the member."""
        view = self._reserve(len(data))
        view[:] = data
        return view

    def replace(self, data: bytes) -> memoryview:
        """Lay out other data for the member that was read last."""
        self._end = self._member
        return self.put(data)

    def close_member(self, name: str, size: int) -> int:
        """Write header and padding of the member; return the offset of its data in the sample.

        SampleError if its name or size does not suit a tar.
        """
        start = self._member
        self._memory[start : start + BLOCK] = member_header(name, size)
        zeros = padding(size)
        self._memory[self._end - len(zeros) : self._end] = zeros
        return start + BLOCK - self._sample

    def _reserve(self, size: int) -> memoryview:
        """Return the memory of a member's data, with room for its header and its padding."""
        need = BLOCK + size + len(padding(size))
        if self._end + need > len(self._memory):
            self._move(need)
        self._member = self._end
        self._end += need
        return self._memory[self._member + BLOCK : self._member + BLOCK + size]

    def _move(self, need: int) -> None:
        """Send all whole samples, and move the unfinished one to where there is room."""
        begun = bytes(self._memory[self._sample : self._end])
        if self._sample:
            self._end = self._sample
            self.flush()
        if not len(self._memory):
            self._memory = self._take()
        if len(begun) + need > len(self._memory):
            self._spare = self._spare or self._memory
            self._memory = memoryview(bytearray(2 * len(begun) + need))
        self._memory[: len(begun)] = begun
        self._sample, self._end = 0, len(begun)
