"""Images per second of loaders that do the same work on the same photographs and cores.

JPEG to RGB, 336x336 antialiased, batches of 32; as float32 in ImageNet's normalisation or as uint8,
with the caption of each image. With --mixed, photographs of 224 to 1344 pixels a side, each near
its own size. Every contestant has its own process, stopped while others run, on as many cores as
there are workers. A rate begins after as many batches as there are workers. Start-up is the time to
an epoch's first batch; "consumer" is the CPU time of the consuming thread for each image. The
limits are the kernels alone, without files, order or batches.

benchmarks/peers/install.sh makes the environment of the peers; the others are reported as missing.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.common import command, parse
from benchmarks.data import Photos, mixed_photographs, packed, photographs
from benchmarks.peers.process import Peer, race_peers
from benchmarks.peers.work import BATCH, MAX_PIXELS, MULTIPLE, SIDE, Task

OURS = Peer(name="datapipe", module="ours", note="threads; shards", ours=True)
BYTES = "threads; libjpeg-turbo alone, from memory"
WORK = "threads; decode, resize, normalise into reused memory, from memory"
LIMITS = tuple(
    Peer(name=f"limit: {which}", module="limits", options={"which": which}, note=note, ours=True)
    for which, note in (("decode", BYTES), ("kernels", WORK))
)
AREA = "threads, INTER_AREA, fast DCT; its file, same JPEG bytes; channels last"
FFCV = tuple(
    Peer(name=name, module="ffcv_file", options={"images": images}, note=note)
    for name, images, note in (
        ("ffcv", "same", AREA),
        ("ffcv q90", "q90", "as ffcv, but its own JPEG encoding at quality 90"),
    )
)
DALI = tuple(
    Peer(name=name, module="dali_cpu", options={"antialias": antialias}, note=note)
    for name, antialias, note in (
        ("dali", True, "CPU, threads; loose files, no captions"),
        ("dali aliased", False, "as dali, but not antialiased: less work"),
    )
)
OTHERS = {
    "torch": ("torch_pillow", "DataLoader + Pillow, processes; loose files"),
    "webdataset": ("webdataset_pillow", "WebLoader + Pillow, processes; shards"),
    "litdata": (
        "litdata_pillow",
        "StreamingDataLoader + Pillow, processes; its chunks, same JPEG bytes",
    ),
    "mosaic": ("mosaic_pillow", "Streaming + Pillow, processes; its shards, same JPEG bytes"),
    "spdl": ("spdl_ffmpeg", "threads, FFmpeg's decoder and bilinear filter; loose files"),
}
FIXED = (
    OURS,
    *(Peer(name=name, module=module, note=note) for name, (module, note) in OTHERS.items()),
    *FFCV,
    *DALI,
    *LIMITS,
)
PILLOW = "DataLoader + Pillow with draft, processes; loose files"
MIXED = (OURS, Peer(name="torch", module="torch_pillow", note=PILLOW), *LIMITS)


def main() -> None:
    parser = command("loaders", __doc__)
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--mixed", action="store_true", help="photographs of mixed sizes")
    options = parse(parser, samples=1024, rounds=5)
    photos = (mixed_photographs if options.mixed else photographs)(options.samples)
    task = task_of(photos, options, mixed=options.mixed)
    peers = MIXED if options.mixed else FIXED
    race_peers(
        peers, task, options, title(photos, task, options), references=("limit: kernels", "torch")
    )


def task_of(photos: Photos, options: argparse.Namespace, **more: Any) -> Task:
    """Return the task of loading photographs with the command line's dtype and workers."""
    forms = photos.raw.with_name(f"{photos.raw.name}-forms")
    given = {name: vars(options)[name] for name in ("dtype", "workers") if name not in more}
    return Task(raw=str(photos.raw), shards=str(packed(photos)), forms=str(forms), **given, **more)


def title(photos: Photos, task: Task, options: argparse.Namespace) -> str:
    """Return what is measured, with its settings."""
    return f"{describe(photos, task)}; {task.workers} workers each, {options.rounds} rounds"


def describe(photos: Photos, task: Task) -> str:
    """Return the task, with its photographs."""
    work = f"{SIDE}x{SIDE} antialiased"
    if task.mixed:
        most = MAX_PIXELS // MULTIPLE**2
        work = f"sides in multiples of {MULTIPLE}, at most {most} x {MULTIPLE}x{MULTIPLE} pixels"
    number = "float32, ImageNet-normalised" if task.normalized else "uint8"
    return f"Loaders: {photos} -> {work}, batches of {BATCH}, {number}"


if __name__ == "__main__":
    main()
