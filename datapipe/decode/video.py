"""Frames of a video, chosen by time and encoded as images while the video is decoded.

The frame for a time is the one that is shown then: the last that begins at that time or before.
Frames are evenly spaced from the first to the last. Only one of them is in memory decoded.
"""

from __future__ import annotations

import io
import math
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import Annotated, Any

import numpy as np
from PIL import Image

from datapipe.array_types import UInt8
from datapipe.declared import Count, Within, check_fields
from datapipe.decode.foreign import PHOTO_QUALITY
from datapipe.decode.image import MAX_PIXELS, check_size
from datapipe.decode.shrink import ShrinkOptions, encode_anew
from datapipe.errors import DecodeError, PackError
from datapipe.extras import install_command
from datapipe.index.images.header import ImageInfo

VIDEO_TIMEOUT = 600.0
"""Seconds of the processor that a video may take."""

MISSING_AV = f"videos need PyAV: install it with {install_command('video')}"

# Demuxers of video files. The others read text, lists of further files and images.
_FORMATS = "mov,matroska,avi,mpeg,mpegts,flv,asf,ogg"
_WITH_INDEX = ("mov", "matroska")  # seeks in the others are not exact
_BUFFER = 1 << 16  # bytes a read
_REORDERED = 16  # most frames that a decoder holds back (H.264, max_dec_frame_buffering)
_WORTH_A_SEEK = 1.0  # seconds of frames that are not decoded for it
_CUT = (1.0, 0.02)  # seconds and share by which a whole file may be shorter than it says


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """Options of the frames of videos; PackError if a value is impossible."""

    fps: Annotated[float, Within(0.001, 1000)] = 2.0  # frames per second of the video
    max: Count = 64  # most frames of a video, then evenly spaced over it
    size: Count | None = None  # most pixels of the longer side; none is scaled up
    timeout: float = VIDEO_TIMEOUT  # seconds of the processor that a video may take

    def __post_init__(self) -> None:
        check_fields(self, PackError)

    def __str__(self) -> str:
        """Return the option that `parse_video_frames` reads, in its one spelling."""
        return f"fps={self.fps:g},max={self.max}"

    def choose(self, seconds: float, most: int | None = None) -> int:
        """Return how many frames to take of a video whose last begins at `seconds`."""
        wanted = 1 if not seconds else max(round(seconds * self.fps), 1) + 1
        return min(wanted, self.max, most or wanted)


def parse_video_frames(text: str, **options: Any) -> VideoOptions:
    """Read the option `--video-frames`, such as "fps=2,max=64".

    Raises:
        PackError: a name is not known, or a value is impossible.

    Examples:
        >>> parse_video_frames("fps=0.5")
        VideoOptions(fps=0.5, max=64, size=None, timeout=600.0)
    """
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            options[name] = {"fps": float, "max": int}[name](value)
        except (KeyError, ValueError):
            raise PackError(
                f"--video-frames {text!r}: {part!r} is neither a rate such as fps=2 nor the most "
                "frames of a video, such as max=64"
            ) from None
    return VideoOptions(**options)


_End = tuple[int, int]
"""When the last frame of a video begins, and how long that is shown, in ticks."""

_Frame = tuple[int, Any]
"""A decoded frame, behind the tick at which it begins."""


class VideoReader:
    """Frames of one video, evenly spaced, the first and the last among them.

    Attributes:
        times: when each frame is shown, in seconds from the first.
        duration: of the video, in seconds.
        fps: frames per second of the file; the mean if they vary.

    Raises:
        DecodeError: the file has no video, is damaged or cut, takes too long, or PyAV is missing.
    """

    def __init__(
        self,
        file: io.RawIOBase | io.BytesIO,
        options: VideoOptions,
        shrink: ShrinkOptions,
        *,
        max_pixels: int = MAX_PIXELS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        sides = [side for side in (options.size, shrink.max_side) if side is not None]
        self._shrink = replace(shrink, max_side=min(sides, default=None))
        self._max_pixels = max_pixels
        self._clock, self._timeout = clock, options.timeout
        self._until = clock() + options.timeout
        self._read = 0  # ticks from the first frame to the one that was read last
        self._first = 0
        self._container: Any = None
        self._stream: Any
        self._rate = self._tick = Fraction(1)
        self._seeks = self._counted = False
        self._ticks: list[int] = []
        self._shown: _Frame
        self._next: _Frame | None
        with self._reported():
            self._converter: Any = _av().video.reformatter.VideoReformatter()
            self._open()
            self._first = 0 if self._counted else self._stream.start_time or 0
            last, lasts = self._find_end()
            self._read = 0
            self._start()
        self._first = self._shown[0]
        last = max(last - self._first, 0)
        number = options.choose(float(last * self._tick))
        self._ticks = [last * n // max(number - 1, 1) for n in range(number)]
        self.times = tuple(float(tick * self._tick) for tick in self._ticks)
        self.duration = float((last + lasts) * self._tick)
        self.fps = float(self._rate)

    def close(self) -> None:
        """Release the decoder; the file stays open."""
        if self._container is not None:
            self._container.close()

    def encoded(self) -> Iterator[tuple[bytes, ImageInfo]]:
        """Yield the frame for each of `times`, encoded upright, and its `probe`."""
        made: tuple[bytes, ImageInfo] | None = None
        made_of: Any = None
        for pixels in self.pixels():
            if made is None or pixels is not made_of:
                made_of, image = pixels, Image.fromarray(pixels)
                made = encode_anew(image, "jpg", self._shrink, quality=PHOTO_QUALITY)
            yield made

    def pixels(self) -> Iterator[UInt8]:
        """Yield the frame for each of `times`, upright, [height, width, 3]; one again as itself."""
        pixels: UInt8 | None = None
        taken: Any = None
        with self._reported():
            for tick in self._ticks:
                self._advance(self._first + tick)
                if pixels is None or self._shown is not taken:
                    taken, frame = self._shown, self._shown[1]
                    check_size(ImageInfo("", frame.width, frame.height), self._max_pixels)
                    # One converter for all: making it takes longer than its work.
                    shown = self._converter.reformat(
                        frame, format="rgb24", interpolation="BICUBIC", threads=1
                    )
                    pixels = _upright(shown.to_ndarray(), frame)
                yield pixels

    def _advance(self, tick: int) -> None:
        """Go on to the frame that is shown at a tick."""
        if self._seeks and (key := self._key_before(tick)) is not None:
            # An index may have times of decoding, and a seek takes times of showing.
            self._container.seek(key + self._delay, stream=self._stream)
            self._start()
            if self._shown[0] > tick:  # a decoder that begins behind the key frame
                self._open()
                self._seeks = False
                self._start()
        while self._next is not None and self._next[0] <= tick:
            self._shown, self._next = self._next, next(self._frames, None)
        if self._next is None and tick - self._shown[0] > _REORDERED * self._frame_ticks:
            raise self._broken("its frames end there, and its packets do not")

    def _key_before(self, tick: int) -> int | None:
        """Return the last key frame before a tick by the index, if it is worth a seek."""
        index = self._stream.index_entries
        number = index.search_timestamp(tick - self._delay, backward=True)
        key = index[number].timestamp if number >= 0 else self._first
        worth = (key - self._shown[0]) * self._tick > _WORTH_A_SEEK
        return int(key) if worth else None

    def _open(self) -> None:
        """Open the file at its beginning."""
        av = _av()
        self.close()
        self._file.seek(0)
        start = self._file.read(12) or b""
        # Of an AVI that is cut, FFmpeg believes what is left.
        is_riff = start[:4] == b"RIFF"
        self._said_size = int.from_bytes(start[4:8], "little") if is_riff else 0
        self._file.seek(0)
        only = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
        self._container = av.open(
            self._file, options=only, buffer_size=_BUFFER, metadata_errors="replace"
        )
        pictures = av.stream.Disposition.attached_pic
        streams = self._container.streams.video
        self._stream = next((s for s in streams if not s.disposition & pictures), None)
        if self._stream is None:
            raise DecodeError("the file has no video, only sound or other data")
        codec = self._stream.codec_context
        if codec is None:
            raise DecodeError("FFmpeg does not decode the codec of the video; convert it to H.264")
        codec.thread_count = 1  # packing has a process on each core
        check_size(ImageInfo("", codec.width, codec.height), self._max_pixels)
        self._rate = Fraction(self._stream.average_rate or self._stream.guessed_rate or 1)
        names = self._container.format.name.split(",")
        # An AVI has no times, and a rate that does not vary: its frames are counted.
        self._counted = "avi" in names
        self._seeks = any(name in names for name in _WITH_INDEX)
        self._tick = 1 / self._rate if self._counted else Fraction(self._stream.time_base)
        self._frame_ticks: int = max(round(1 / (self._rate * self._tick)), 1)

    def _start(self) -> None:
        """Decode the first frame from here, and one more."""
        self._frames = self._decoded()
        shown = next(self._frames, None)
        if shown is None:
            raise self._broken("no frame can be decoded")
        self._shown = shown
        self._next = next(self._frames, None)

    def _decoded(self) -> Iterator[_Frame]:
        """Yield frames in the order in which they are shown."""
        last: int | None = None
        number = 0
        for packet in self._packets():
            if not packet.size and packet.dts is not None:
                continue  # shows the frame before it once more
            for frame in self._packet(packet).decode():
                if frame.is_corrupt:
                    raise self._broken("a frame is damaged")
                tick, number = number if self._counted else frame.pts, number + 1
                if tick is not None and (last is None or tick > last):
                    last = tick
                    self._read = tick - self._first
                    yield tick, frame

    def _packets(self) -> Iterator[Any]:
        """Yield packets; a frame that is not wanted is decoded only if others refer to it."""
        packets, codec = self._container.demux(self._stream), self._stream.codec_context
        ahead = deque(islice(packets, _REORDERED))
        while ahead:
            packet = ahead.popleft()
            ahead.extend(islice(packets, 1))
            times = [each.pts for each in (packet, *ahead) if each.pts is not None]
            codec.skip_frame = "DEFAULT" if self._wants(packet.pts, times) else "NONREF"
            yield packet

    def _wants(self, start: int | None, times: Iterable[int]) -> bool:
        """Return whether to take a frame that begins at `start`, before the next of `times`."""
        if start is None or not (self._seeks and self._ticks):
            return True
        end = min((time for time in times if time > start), default=math.inf)
        # A packet may hold one field of a frame: the frames on either side are wanted too.
        around = (start - self._first - self._frame_ticks, end - self._first + self._frame_ticks)
        return bisect_left(self._ticks, around[0]) < bisect_right(self._ticks, around[1])

    def _packet(self, packet: Any) -> Any:
        """Return a packet that was read; DecodeError if it is cut, or the time is up."""
        if packet.is_corrupt:
            raise self._broken("its data is cut or damaged")
        if self._clock() > self._until:
            raise self._broken(
                f"it took more than {self._timeout:g} s of CPU time; raise --video-timeout"
            )
        return packet

    def _find_end(self) -> _End:
        """Find the last frame, by the packets behind the last key frame where an index has it."""
        end = None
        self._delay = 0
        if self._seeks:
            head = next((p for p in self._container.demux(self._stream) if p.size), None)
            if head is not None and None not in (head.pts, head.dts):
                self._delay = max(head.pts - head.dts, 0)
            # Far behind any end: the index has the last key frame.
            self._container.seek(1 << 40, stream=self._stream)
            end = self._scan()
            if end is None:
                self._open()
        end = end or self._scan()
        if end is None:
            raise self._broken("it holds no frames")
        if self._seeks:
            self._container.seek(self._stream.start_time or 0, stream=self._stream)
        else:
            self._open()
        return end

    def _scan(self) -> _End | None:
        """Read packets to the end of the file; None if there is no frame among them."""
        found: _End | None = None
        ends = Fraction(0)  # of all streams, in seconds
        number = 0
        for packet in self._container.demux():
            at = packet.dts if packet.pts is None else packet.pts
            if not packet.size or packet.is_discard or at is None:
                continue
            if packet.stream is not self._stream:
                if packet.time_base:
                    ends = max(ends, (at + (packet.duration or 0)) * packet.time_base)
                continue
            self._packet(packet)
            at, number = number if self._counted else at, number + 1
            if found is None or at >= found[0]:
                lasts = 0 if self._counted else packet.duration
                found = at, lasts or self._frame_ticks
            self._read = found[0] - self._first
        if found is not None:
            self._check_whole(found, ends)
        return found

    def _check_whole(self, end: _End, ends: Fraction) -> None:
        """Refuse a file that ends earlier than it says."""
        stream, container = self._stream, self._container
        seen = sum(end) * self._tick
        if stream.duration:
            said = ((stream.start_time or 0) + stream.duration) * Fraction(stream.time_base)
        else:
            said = Fraction((container.start_time or 0) + (container.duration or 0), 1_000_000)
            seen = max(seen, ends)
        index = stream.index_entries
        beyond = self._said_size
        if self._seeks and len(index):
            beyond = index[len(index) - 1].pos + index[len(index) - 1].size
        if said - seen > max(_CUT[0], _CUT[1] * said) or beyond > self._size:
            raise self._broken(f"the file is cut there; it should last {float(said):.1f} s")

    def _broken(self, why: object) -> DecodeError:
        return DecodeError(f"the video broke at {float(self._read * self._tick):.1f} s: {why}")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise errors of FFmpeg as `DecodeError`, with the time that was reached."""
        try:
            yield
        except DecodeError:
            self.close()
            raise
        except (_av().error.FFmpegError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            if self._container is None:
                raise DecodeError(f"the video cannot be opened: {why}") from error
            self.close()
            raise self._broken(why) from error


def _upright(pixels: UInt8, frame: Any) -> UInt8:
    """Return the pixels of a frame, turned and mirrored by the display matrix of its file."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return pixels
    # x' = a x + c y, y' = b x + d y (ISO/IEC 14496-12, 8.2.2), in fixed point.
    a, b, _, c, d, *_ = np.frombuffer(bytes(matrix), np.int32).tolist()
    if abs(b) > abs(a):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise DecodeError(MISSING_AV) from error
    return av
