"""Gains of arrays: images decoded once, warm and cold, and shared by processes.

    python -m benchmarks.memmap warm     # beside a plain gather, FFCV's raw mode, a memory cache
    python -m benchmarks.memmap cold     # out of the page cache, beside what dd reads
    python -m benchmarks.memmap share    # what ten worker processes have of the file in memory

`warm`: the photographs of `benchmarks.loaders`, 336x336, with the caption of each; the limit copies
as many uint8 images in a random order into reused memory. `cold`: a random order, while dd reads
the same file from its beginning to its end.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.cache.__main__ import CACHED, EPOCHS, GATHER
from benchmarks.common import (
    Absent,
    Contestant,
    Run,
    chosen,
    compete,
    machine,
    parse,
    report,
    write_json,
)
from benchmarks.data import packed, photographs
from benchmarks.loaders import describe
from benchmarks.peers.ours import arrays_of
from benchmarks.peers.process import Peer, contestant
from benchmarks.peers.work import BATCH, SIDE, Task
from datapipe import ImageSpec, make_loader
from datapipe.decode.normalize import KERNEL
from datapipe.index.files.npy import HEADER
from datapipe.store.arrays import IMAGES

_PROCESSES = 10

WARM = (
    Peer(
        name="datapipe, arrays",
        module="ours",
        options={"arrays": True, "epochs": EPOCHS},
        note="threads; channels first",
        ours=True,
    ),
    CACHED,
    Peer(
        name="ffcv raw",
        module="ffcv_raw",
        options={"epochs": EPOCHS},
        note="threads; its file, images of the same size as they are; channels last",
    ),
    GATHER,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memmap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("warm", "cold", "share"))
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="uint8")
    options = parse(parser, samples=1024, rounds=5)
    photos = photographs(options.samples)
    task = Task(
        raw=str(photos.raw),
        shards=str(packed(photos)),
        forms=str(photos.raw.with_name(f"{photos.raw.name}-forms")),
        dtype=options.dtype,
        workers=options.workers,
    )
    title = f"{describe(photos, task)}; {options.workers} workers each, {options.rounds} rounds"
    {"warm": warm, "cold": cold, "share": share}[options.what](task, title, options)


def warm(task: Task, title: str, options: argparse.Namespace) -> None:
    """Epochs from the page cache."""
    where = machine(cache="warm")
    versions: dict[str, str] = where["versions"]
    with ExitStack() as stack:
        entries = [contestant(peer, task, stack, versions) for peer in WARM]
        results = compete(chosen(entries, options.only), options.rounds)
    report(
        title,
        results,
        where=where,
        references=("limit: gather", "ffcv raw"),
        unit="img/s",
        path=options.json,
    )


def cold(task: Task, title: str, options: argparse.Namespace) -> None:
    """Run an epoch whose file is in the memory of no process."""
    folder = arrays_of(task)
    path = folder / IMAGES
    images = (path.stat().st_size - HEADER) // (SIDE * SIDE * 3)

    def ours() -> Callable[[], Run]:
        KERNEL.load()

        def run() -> Run:
            drop(path)
            loader = make_loader(
                folder,
                batch_size=BATCH,
                image=ImageSpec(size=SIDE),
                num_workers=task.workers,
            )
            begun = time.perf_counter()
            for batch in loader:
                del batch
            seconds = time.perf_counter() - begun
            loader.close()
            del loader  # and the map with it
            gc.collect()
            return Run(samples=images, seconds=seconds)

        return run

    def dd() -> Run:
        drop(path)
        begun = time.perf_counter()
        command = ["dd", f"if={path}", "of=/dev/null", "bs=1M"]
        subprocess.run(command, check=True, capture_output=True)
        return Run(samples=images, seconds=time.perf_counter() - begun)

    entries = [
        Contestant(name="datapipe, arrays", make=ours, note="a random order, every image checked"),
        Contestant(name="dd", make=lambda: dd, note="bs=1M, from the beginning to the end"),
    ]
    report(
        title,
        compete(chosen(entries, options.only), options.rounds),
        where=machine("torch", cache="dropped before each run"),
        references=("dd",),
        unit="img/s",
        path=options.json,
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
    iterator = iter(loader)
    for _ in range(len(loader) - 1):
        next(iterator)
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    rows = [mapped(pid, IMAGES) for pid in pids]
    users = [row for row in rows if row["rss"]]
    total = {name: sum(row[name] for row in rows) for name in ("rss", "pss", "private_dirty")}
    loader.close()
    print(f"{_PROCESSES} worker processes, {folder / IMAGES} of {size / 1e6:.1f} MB")
    print(f"  processes that have pages of it {len(users):10}")
    for name, note in (
        ("rss", "each page once for every process that has it"),
        ("pss", "each page once"),
        ("private_dirty", "copies"),
    ):
        print(f"  {name:<31} {total[name] / 1e6:10.1f} MB  {note}")
    print(f"  pss / size {total['pss'] / size:.2f}")
    if options.json is not None:
        content = {
            "title": f"memmap share: {title}",
            "machine": machine(cache="warm"),
            "processes": len(users),
            "size": size,
            **total,
        }
        write_json(options.json, content)


def drop(path: Path) -> None:
    """Have the system forget a file's pages, which must be in no process's tables then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    left = int(subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path],
        check=True, capture_output=True, text=True,
    ).stdout)  # fmt: skip
    if left > path.stat().st_size // 100:
        raise Absent(f"{left:,} bytes stay in the page cache")


def mapped(pid: int, name: str) -> dict[str, int]:
    """Return the bytes that a process has in memory of the maps of a file."""
    found = {"rss": 0, "pss": 0, "private_dirty": 0}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
            inside = line.endswith(name)
        elif inside:
            key, _, value = line.partition(":")
            if key.lower() in found:
                found[key.lower()] += int(value.split()[0]) * 1024
    return found


if __name__ == "__main__":
    main()
