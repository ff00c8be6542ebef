"""Images per second of loaders that do the same work on the same photographs and cores.

JPEG to RGB, 336x336 antialiased, batches of 32; as float32 in ImageNet's normalisation or as uint8,
with the caption of each image. With --mixed, photographs of 224 to 1344 pixels a side, each near
its own size. Every contestant has its own process, stopped while others run, on as many cores as
there are workers. A rate begins after as many batches as there are workers. Start-up is the time to
an epoch's first batch; "consumer" is the CPU time of the consuming thread for each image. The
limits are the kernels alone, without files, order or batches.

benchmarks/peers/install.sh makes the environment of the peers; the others are reported as missing.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.common import command, machine, parse, race
from benchmarks.data import Photos, mixed_photographs, packed, photographs
from benchmarks.peers.process import Peer, contestant
from benchmarks.peers.work import BATCH, MAX_PIXELS, MULTIPLE, SIDE, Task

OURS = Peer("datapipe", "ours.loader", "threads; shards")
BYTES = "threads; libjpeg-turbo alone, from memory"
WORK = "threads; decode, resize, normalise into reused memory, from memory"
LIMITS = (
    Peer("limit: decode", "ours.limit", BYTES, {"which": "decode"}),
    Peer("limit: kernels", "ours.limit", WORK, {"which": "kernels"}),
)
AREA = "threads, INTER_AREA, fast DCT; its file, same JPEG bytes; channels last"
Q90 = "as ffcv, but its own JPEG encoding at quality 90"
FFCV = (
    Peer("ffcv", "ffcv_file.make", AREA, {"images": "same"}),
    Peer("ffcv q90", "ffcv_file.make", Q90, {"images": "q90"}),
)
CHUNKS = "StreamingDataLoader + Pillow, processes; its chunks, same JPEG bytes"
MOSAIC = "Streaming + Pillow, processes; its shards, same JPEG bytes"
FFMPEG = "threads, FFmpeg's decoder and bilinear filter; loose files"
ALIASED = "as dali, but not antialiased: less work"
FIXED = (
    OURS,
    Peer("torch", "others.torch_pillow", "DataLoader + Pillow, processes; loose files"),
    Peer("webdataset", "others.webdataset_pillow", "WebLoader + Pillow, processes; shards"),
    Peer("litdata", "others.litdata_pillow", CHUNKS),
    Peer("mosaic", "others.mosaic_pillow", MOSAIC),
    Peer(
        "spdl", "others.spdl_ffmpeg", "threads, FFmpeg's decoder and bilinear filter; loose files"
    ),
    *FFCV,
    Peer("dali", "others.dali_cpu", "CPU, threads; loose files, no captions", {"antialias": True}),
    Peer("dali aliased", "others.dali_cpu", ALIASED, {"antialias": False}),
    *LIMITS,
)
PILLOW = "DataLoader + Pillow with draft, processes; loose files"
MIXED = (OURS, Peer("torch", "others.torch_pillow", PILLOW), *LIMITS)


def main() -> None:
    parser = command("loaders", __doc__)
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--mixed", action="store_true", help="photographs of mixed sizes")
    options = parse(parser, samples=1024, rounds=5)
    photos = (mixed_photographs if options.mixed else photographs)(options.samples)
    peers, references = MIXED if options.mixed else FIXED, ("limit: kernels", "torch")
    race_peers(peers, photos, options, references, mixed=options.mixed)


def task_of(photos: Photos, options: argparse.Namespace, **more: Any) -> Task:
    """Return the task of loading photographs with the command line's dtype and workers."""
    forms = photos.raw.with_name(f"{photos.raw.name}-forms")
    given = {name: vars(options)[name] for name in ("dtype", "workers") if name not in more}
    return Task(raw=str(photos.raw), shards=str(packed(photos)), forms=str(forms), **given, **more)


def race_peers(
    peers: Sequence[Peer],
    photos: Photos,
    options: argparse.Namespace,
    references: Sequence[str],
    **more: Any,
) -> None:
    """Race peers that do one task, with a warm page cache, and report."""
    task = task_of(photos, options, **more)
    where = machine(cache="warm")
    with ExitStack() as stack:
        entries = [contestant(peer, task, stack, where["versions"]) for peer in peers]
        title = title_of(photos, task, options)
        race(entries, options, title, where=where, references=references, unit="img/s")


def title_of(photos: Photos, task: Task, options: argparse.Namespace) -> str:
    return f"{describe(photos, task)}; {task.workers} workers each, {options.rounds} rounds"


def describe(photos: Photos, task: Task) -> str:
    work = f"{SIDE}x{SIDE} antialiased"
    if task.mixed:
        most = MAX_PIXELS // MULTIPLE**2
        work = f"sides in multiples of {MULTIPLE}, at most {most} x {MULTIPLE}x{MULTIPLE} pixels"
    number = "float32, ImageNet-normalised" if task.normalized else "uint8"
    return f"Loaders: {photos} -> {work}, batches of {BATCH}, {number}"


if __name__ == "__main__":
    main()
