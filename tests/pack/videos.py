"""Small videos whose frames tell their number by their brightness."""

import io
from fractions import Fraction

import av
import numpy as np
from PIL import Image

SIDE = 32
STEP = 8  # of brightness, from one frame to the next


def write_video(
    path,
    frames=10,
    *,
    rate=10,
    codec="libx264",
    format=None,
    pixels="yuv420p",
    at=None,
    size=(SIDE, SIDE),
    sound=0,
    **options,
):
    """Write a video; frame n is `STEP` x n brighter than the first, `at` has ticks of 1 ms."""
    with av.open(path, "w", format=format) as file:
        if frames:
            stream = file.add_stream(codec, rate=rate, options=options)
            stream.width, stream.height = size
            stream.pix_fmt = pixels
        if at is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        heard = file.add_stream("aac", rate=8000, layout="mono") if sound else None
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, size), format="rgb24")
            frame = frame.reformat(format=pixels)
            if at is not None:
                frame.pts, frame.time_base = at[number], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        if frames:
            file.mux(stream.encode())
        for start in range(0, int(sound * 8000), 1000):
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 1000), np.float32), "fltp", "mono")
            silence.sample_rate, silence.pts = 8000, start
            file.mux(heard.encode(silence))
        if heard is not None:
            file.mux(heard.encode())
    return path


def picture(number, size=(SIDE, SIDE)):
    """Return the pixels of a frame; its left half is darker than its right."""
    pixels = np.full((size[1], size[0], 3), 60 + STEP * (number % 21), np.uint8)
    pixels[:, : size[0] // 2] -= 40
    return pixels


def video_bytes(frames=10, format="mp4", **options):
    buffer = io.BytesIO()
    write_video(buffer, frames, format=format, **options)
    return buffer.getvalue()


def number_of(image):
    """Return the number of the frame that an image shows."""
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("L"), float)
    return round((pixels[:, -pixels.shape[1] // 4 :].mean() - 60) / STEP)
