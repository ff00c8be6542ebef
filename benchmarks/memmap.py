"""Gains of arrays: images decoded once, warm and cold, and shared by processes.

    python -m benchmarks.memmap warm     # beside a plain gather, FFCV's raw mode, a memory cache
    python -m benchmarks.memmap cold     # out of the page cache, beside what dd reads
    python -m benchmarks.memmap share    # what ten worker processes have of the file in memory

`warm`: the photographs of `benchmarks.loaders`, 336x336, with the caption of each; the limit copies
as many uint8 images in a random order into reused memory. `cold`: a random order, while dd reads
the same file from its beginning to its end.
"""

import argparse
import gc
import os
import subprocess
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import psutil

from benchmarks.cache.__main__ import CACHED, EPOCHS, GATHER
from benchmarks.common import (
    Absent,
    Contestant,
    Run,
    command,
    machine,
    parse,
    race,
    show,
    write_json,
)
from benchmarks.data import drop_cache, photographs, timed
from benchmarks.loaders import race_peers, task_of, title_of
from benchmarks.peers.ours import arrays_of
from benchmarks.peers.process import Peer
from benchmarks.peers.work import BATCH, SIDE, Task
from datapipe import ImageSpec, make_loader
from datapipe.decode.normalize import KERNEL
from datapipe.index.files.npy import HEADER
from datapipe.store.arrays import IMAGES

_PROCESSES = 10

ARRAYS = {"arrays": True, "epochs": EPOCHS}
RAW = "threads; its file, images of the same size as they are; channels last"
WARM = (
    Peer("datapipe, arrays", "ours.loader", "threads; channels first", ARRAYS),
    CACHED,
    Peer("ffcv raw", "ffcv_file.make", RAW, {"images": "raw", "epochs": EPOCHS}),
    GATHER,
)


def main() -> None:
    parser = command("memmap", __doc__)
    parser.add_argument("what", choices=("warm", "cold", "share"))
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="uint8")
    options = parse(parser, samples=1024, rounds=5)
    photos = photographs(options.samples)
    if options.what == "warm":
        race_peers(WARM, photos, options, ("limit: gather", "ffcv raw"))
        return
    task = task_of(photos, options)
    {"cold": cold, "share": share}[options.what](task, title_of(photos, task, options), options)


def cold(task: Task, title: str, options: argparse.Namespace) -> None:
    """Run an epoch whose file is in the memory of no process."""
    folder = arrays_of(task)
    path = folder / IMAGES
    images = (path.stat().st_size - HEADER) // (SIDE * SIDE * 3)

    def ours() -> Callable[[], Run]:
        KERNEL.load()

        def run() -> Run:
            drop(path)
            image = ImageSpec(size=SIDE)
            loader = make_loader(folder, batch_size=BATCH, image=image, num_workers=task.workers)
            done = timed(images, partial(deque, loader, maxlen=0))
            loader.close()
            del loader  # and the map with it
            gc.collect()
            return done

        return run

    def dd() -> Run:
        drop(path)
        words = ["dd", f"if={path}", "of=/dev/null", "bs=1M"]
        return timed(images, lambda: subprocess.run(words, check=True, capture_output=True))

    race(
        [
            Contestant("datapipe, arrays", ours, "a random order, every image checked"),
            Contestant("dd", lambda: dd, "bs=1M, from the beginning to the end"),
        ],
        options,
        title,
        where=machine("torch", cache="dropped before each run"),
        references=("dd",),
        unit="img/s",
    )


def share(task: Task, title: str, options: argparse.Namespace) -> None:
    """Measure the processes' part of the file, each page divided by those that map it (PSS)."""
    folder = arrays_of(task)
    size = (folder / IMAGES).stat().st_size
    loader = make_loader(
        folder,
        batch_size=BATCH,
        image=ImageSpec(size=SIDE),
        num_workers=_PROCESSES,
        workers="processes",
        epochs=_PROCESSES,
    )
    iterator = iter(loader)  # which keeps the workers
    deque(islice(iterator, len(loader) - 1), maxlen=0)
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    every = [one for pid in pids for one in psutil.Process(pid).memory_maps()]
    maps = [one for one in every if one.path.endswith(IMAGES)]
    loader.close()
    found = {"processes": sum(bool(one.rss) for one in maps), "size": size}
    for name in ("rss", "pss", "private_dirty"):
        found[name] = sum(getattr(one, name) for one in maps)
    show(
        f"Bytes of {folder / IMAGES} in {_PROCESSES} worker processes: rss counts a page once for "
        "every process that has it, pss once; private_dirty are copies",
        [found],
    )
    about = {"title": f"memmap share: {title}", "machine": machine(cache="warm")}
    write_json(options.json, about | found)


def drop(path: Path) -> None:
    """Drop a file's pages, which no process may have mapped."""
    drop_cache([path])
    words = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    left = int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    if left > path.stat().st_size // 100:
        raise Absent(f"{left:,} bytes stay in the page cache")


if __name__ == "__main__":
    main()
