"""Images per second of loaders that do the same work on the same photographs and cores.

JPEG to RGB, 336x336 antialiased, batches of 32; as float32 in ImageNet's normalisation or as uint8,
with the caption of each image. With --mixed, photographs of 224 to 1344 pixels a side, each near
its own size. Every contestant has a process of its own, stopped while others run, on as many cores
as there are workers. A rate begins after as many batches as there are workers, when each has its
next one begun; the time to an epoch's first batch is the start-up; what the consuming thread itself
does is given for each image. The two limits are the kernels alone, without files, order, batches or
anything else around them.

benchmarks/peers/install.sh makes the environment of the peers; without it those that are not
installed here are reported as missing.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import chosen, compete, machine, parse, report
from benchmarks.data import Photos, mixed_photographs, packed, photographs
from benchmarks.peers.process import Peer, contestant
from benchmarks.peers.work import BATCH, MAX_PIXELS, MULTIPLE, SIDE, Task

OURS = Peer(name="datapipe", module="ours", note="threads; shards", ours=True)
TORCH = Peer(
    name="torch", module="torch_pillow", note="DataLoader + Pillow, processes; loose files"
)
LIMITS = (
    Peer(
        name="limit: decode",
        module="limits",
        options={"which": "decode"},
        note="threads; libjpeg-turbo alone, from memory",
        ours=True,
    ),
    Peer(
        name="limit: kernels",
        module="limits",
        options={"which": "kernels"},
        note="threads; decode, resize, normalise into reused memory, from memory",
        ours=True,
    ),
)
FFCV = (
    Peer(
        name="ffcv",
        module="ffcv_jpeg",
        options={"same_bytes": True},
        note="threads, INTER_AREA, fast DCT; its file, same JPEG bytes; channels last",
    ),
    Peer(
        name="ffcv q90",
        module="ffcv_jpeg",
        options={"same_bytes": False},
        note="as ffcv, but its own JPEG encoding at quality 90",
    ),
)
FIXED = (
    OURS,
    TORCH,
    Peer(
        name="webdataset",
        module="webdataset_pillow",
        note="WebLoader + Pillow, processes; shards",
    ),
    Peer(
        name="litdata",
        module="litdata_pillow",
        note="StreamingDataLoader + Pillow, processes; its chunks, same JPEG bytes",
    ),
    Peer(
        name="mosaic",
        module="mosaic_pillow",
        note="Streaming + Pillow, processes; its shards, same JPEG bytes",
    ),
    Peer(
        name="spdl",
        module="spdl_ffmpeg",
        note="threads, FFmpeg's decoder and bilinear filter; loose files",
    ),
    *FFCV,
    Peer(
        name="dali",
        module="dali_cpu",
        options={"antialias": True},
        note="CPU, threads; loose files, no captions",
    ),
    Peer(
        name="dali aliased",
        module="dali_cpu",
        options={"antialias": False},
        note="as dali, but not antialiased: less work",
    ),
    *LIMITS,
)
MIXED = (
    OURS,
    Peer(
        name="torch",
        module="torch_pillow",
        note="DataLoader + Pillow with draft, processes; loose files",
    ),
    *LIMITS,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loaders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--mixed", action="store_true", help="photographs of mixed sizes")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw a bar chart (.svg, .png)"
    )
    options = parse(parser, samples=1024, rounds=5)
    if options.plot is not None:
        from benchmarks.plot import draw  # before the race: matplotlib may be missing
    photos = (mixed_photographs if options.mixed else photographs)(options.samples)
    task = Task(
        raw=str(photos.raw),
        shards=str(packed(photos)),
        forms=str(photos.raw.with_name(f"{photos.raw.name}-forms")),
        dtype=options.dtype,
        workers=options.workers,
        mixed=options.mixed,
    )
    where = machine(cache="warm")
    versions: dict[str, str] = where["versions"]
    with ExitStack() as stack:
        peers = MIXED if options.mixed else FIXED
        entries = [contestant(peer, task, stack, versions) for peer in peers]
        results = compete(chosen(entries, options.only), options.rounds)
    title = f"{describe(photos, task)}; {options.workers} workers each, {options.rounds} rounds"
    report(
        title,
        results,
        where=where,
        references=("limit: kernels", "torch"),
        unit="img/s",
        path=options.json,
    )
    if options.plot is not None:
        draw(results, title=title, unit="img/s", path=options.plot)


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
