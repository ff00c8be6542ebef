"""Packing of videos as frames: equal to FFmpeg's by time, its rate, and its memory.

`frames` takes frames of videos of many kinds, and compares the pixels with those that the command
`ffmpeg` decodes: of all its frames, the last that begins at the time or before. `rate` packs a
folder of clips, beside what decoding all their frames alone takes on as many processes; starting
its processes is part of datapipe's time. `memory` takes frames of a video of one minute and of
one of ten, each in a process of its own. The videos are made by the command `ffmpeg`.
"""

import argparse
import io
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Absent, Contestant, Run, command, machine, parse, race, show
from benchmarks.data import fresh, timed
from benchmarks.memory import peak
from datapipe.decode.shrink import ShrinkOptions
from datapipe.decode.video import VideoOptions, VideoReader
from datapipe.pack.pack_dataset import pack_dataset

_HOME = Path("build/bench/videos")
_SOURCE = "testsrc2=s={size}:r={rate}:d={seconds},noise=alls=6"
_KINDS: dict[str, tuple[str, ...]] = {
    "a.mp4": ("-c:v", "libx264", "-g", "25", "-bf", "3"),
    "long-gop.mkv": ("-c:v", "libx264", "-g", "250", "-bf", "3"),
    "open-gop.mkv": ("-c:v", "libx264", "-x264-params", "open-gop=1", "-g", "25"),
    "fragments.mp4": ("-c:v", "libx264", "-movflags", "frag_keyframe+empty_moov"),
    "varying.mp4": ("-vf", "setpts=N*N*0.0006/TB", "-fps_mode", "vfr", "-c:v", "libx264"),
    "444.mp4": ("-c:v", "libx264", "-pix_fmt", "yuv444p"),
    "10-bit.mp4": ("-c:v", "libx264", "-pix_fmt", "yuv420p10le"),
    "709.mp4": ("-c:v", "libx264", "-colorspace", "bt709"),
    "hevc.mp4": ("-c:v", "libx265", "-x265-params", "log-level=0"),
    "vp9.webm": ("-c:v", "libvpx-vp9", "-pix_fmt", "yuva420p"),
    "mpeg4.avi": ("-c:v", "mpeg4", "-bf", "2"),
    "mjpeg.avi": ("-c:v", "mjpeg"),
    "mpeg2.mpg": ("-c:v", "mpeg2video", "-bf", "2"),
    "stream.ts": ("-c:v", "libx264", "-f", "mpegts"),
    "flash.flv": ("-c:v", "flv1"),
}


def main() -> None:
    parser = command("video", __doc__)
    parser.add_argument("what", choices=("frames", "rate", "memory", "peak"))
    parser.add_argument("--seconds", type=int, default=20, help="of each clip (%(default)s)")
    parser.add_argument("--size", default="640x360", help="of each frame (%(default)s)")
    options = parse(parser, samples=32, rounds=5)
    if shutil.which("ffmpeg") is None:
        sys.exit("the command `ffmpeg` is not installed")
    whats = {"frames": compare_frames, "rate": compare_rates, "memory": compare_memory}
    (whats | {"peak": print_peak})[options.what](options)


def make_video(name: str, seconds: int, size: str, *arguments: str) -> Path:
    """Return a synthetic video, which is made unless it is there already."""
    path = _HOME / f"{size}-{seconds}s" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = _SOURCE.format(size=size, rate=25, seconds=seconds)
        made = path.with_name(f"making-{name}")
        ffmpeg("-y", "-f", "lavfi", "-i", source, *arguments, str(made))
        made.replace(path)
    return path


def ffmpeg(*arguments: str) -> bytes:
    command = ["ffmpeg", "-nostdin", "-v", "error", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def compare_frames(options: argparse.Namespace) -> None:
    rows = []
    for name, arguments in _KINDS.items():
        path = make_video(name, options.seconds, options.size, *arguments)
        theirs, starts = frames_of_ffmpeg(path)
        equal, least, count = 0, math.inf, 0
        for at, ours in frames_of_datapipe(path):
            shown = max(n for n, start in enumerate(starts) if start <= at + Fraction(1, 10**6))
            error = float(np.mean((ours.astype(np.float32) - theirs[shown]) ** 2))
            equal += error == 0
            least = min(least, 10 * math.log10(255**2 / error) if error else math.inf)
            count += 1
        worst = "" if least == math.inf else f"{least:.1f} dB"
        rows.append({"video": name, "frames": count, "equal": equal, "least PSNR": worst})
    show("Frames of datapipe beside those of FFmpeg", rows)


def frames_of_ffmpeg(path: Path) -> tuple[Any, list[Fraction]]:
    """Return all frames of a video, uint8 [n, height, width, 3], and seconds from the first."""
    every = ("-i", str(path), "-map", "0:v:0", "-fps_mode", "passthrough", "-copyts")
    starts: list[Fraction] = []
    tick, width, height = Fraction(1), 0, 0
    for line in ffmpeg(*every, "-f", "framecrc", "-").decode().splitlines():
        if line.startswith("#tb"):
            tick = Fraction(line.split()[-1])
        elif line.startswith("#dimensions"):
            width, height = map(int, line.split()[-1].split("x"))
        elif not line.startswith("#"):
            starts.append(int(line.split(",")[2]) * tick)
    pixels = ffmpeg(*every, "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    frames = np.frombuffer(pixels, np.uint8).reshape(-1, height, width, 3)
    return frames, [start - starts[0] for start in starts]


def frames_of_datapipe(path: Path) -> Iterator[tuple[float, Any]]:
    """Yield the time and the pixels of each frame, before they are encoded."""
    with open(path, "rb", buffering=0) as file:
        reader = VideoReader(file, VideoOptions(fps=2, max=64), ShrinkOptions())
        yield from zip(reader.times, reader.pixels(), strict=True)
        reader.close()


def compare_rates(options: argparse.Namespace) -> None:
    clips = [
        make_video(f"{n}.mp4", options.seconds, options.size, "-c:v", "libx264", "-g", "250")
        for n in range(options.samples)
    ]
    workers = options.workers
    frames = f"{workers} processes; fsync; frames as JPEG of quality 95"
    jpegs = f"{workers} processes of one thread; two frames a second as JPEG"
    with ProcessPoolExecutor(workers) as pool:
        ways: dict[str, tuple[Callable[[], Run], str]] = {
            "datapipe, fps=2,max=64": (partial(pack, clips, "fps=2,max=64", workers), frames),
            "datapipe, fps=2,max=8": (partial(pack, clips, "fps=2,max=8", workers), frames),
            "decode every frame": (
                partial(timed, len(clips), lambda: list(pool.map(decode, clips))),
                f"{workers} processes; PyAV, nothing else",
            ),
            "ffmpeg": (partial(run_ffmpeg, clips, workers), jpegs),
        }
        race(
            [Contestant(name, partial(partial, run), note) for name, (run, note) in ways.items()],
            options,
            f"Packing: {len(clips)} clips of {options.seconds} s, {options.size}, H.264, key "
            f"frames 10 s apart; {options.rounds} rounds",
            where=machine("datapipe", "av", cache="warm"),
            references=("decode every frame", "ffmpeg"),
            unit="clips/s",
        )


def pack(clips: list[Path], wanted: str, workers: int) -> Run:
    how: dict[str, Any] = {"video_frames": wanted, "workers": workers, "limit": len(clips)}
    with fresh() as home:
        started = time.perf_counter()
        done = pack_dataset(
            clips[0].parent, home / "out", format="folder", ignore="making-*", **how
        )
        seconds = time.perf_counter() - started
    assert done.videos == len(clips), f"{done.videos} of {len(clips)} clips were packed"
    return Run(samples=len(clips), seconds=seconds)


def decode(path: Path) -> int:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return sum(1 for _ in container.decode(stream))


def run_ffmpeg(clips: list[Path], workers: int) -> Run:
    command = "ffmpeg -nostdin -v error -threads 1 -i {} -vf fps=2 -threads 1 -q:v 2 {}-%04d.jpg"

    def run(home: Path) -> None:
        commands = [command.format(path, home / path.stem).split() for path in clips]
        with ThreadPoolExecutor(workers) as threads:
            if any(threads.map(subprocess.call, commands)):
                raise Absent("the command `ffmpeg` failed")

    with fresh() as home:
        return timed(len(clips), lambda: run(home))


def compare_memory(options: argparse.Namespace) -> None:
    rows = []
    for seconds in (60, 600):
        make_video("long.mp4", seconds, options.size, "-c:v", "libx264", "-preset", "ultrafast")
        words = ["benchmarks.video", "peak", "--seconds", str(seconds), "--size", options.size]
        done = subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.PIPE)
        rows.append({"video": f"{seconds} s", "MB": int(done.stdout)})
    show("Peak of a process that takes 64 frames", rows)


def print_peak(options: argparse.Namespace) -> None:
    """Take 64 frames of one video, and print the peak of this process in megabytes."""
    path = make_video("long.mp4", options.seconds, options.size)
    with open(path, "rb", buffering=0) as file:
        reader = VideoReader(file, VideoOptions(fps=2, max=64), ShrinkOptions())
        kept = [io.BytesIO(content) for content, _ in reader.encoded()]
        reader.close()
    assert len(kept) == 64
    print(round(peak(os.getpid())))


if __name__ == "__main__":
    main()
