"""Samples per second of copying samples into new shards, beside `cp` of as many bytes.

`merge` copies all samples of two datasets, `select` every second sample at random, `cp` the tars
that `merge` reads. All end with an fsync of what they wrote. datapipe also compares every member
with its checksum and writes an index; importing it is not timed, starting `cp` and `sync` is. The
output goes to a fresh folder on the disk of the source, which is deleted after the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import Contestant, Run, chosen, compete, machine, parse, report
from benchmarks.data import packed, photographs, scratch
from datapipe.curate.merge import merge_datasets
from datapipe.curate.select import select_samples
from datapipe.curate.spec import CopySpec
from datapipe.curate.split import split_dataset

_BLOCK = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options = parse(parser, samples=32768, rounds=5)
    photos = photographs(options.samples)
    source = packed(photos)
    halves = source.with_name(f"{source.name}-halves")
    split_dataset(source, halves, parts={"one": 0.5, "two": 0.5})
    parts = [halves / "one", halves / "two"]
    tars = [tar for part in parts for tar in sorted(part.glob("*.tar"))]
    numbered = CopySpec(renumber=True)
    entries: dict[str, tuple[int, Callable[[Path], object]]] = {
        "merge": (photos.count, lambda out: merge_datasets(parts, out)),
        "merge, new keys": (photos.count, lambda out: merge_datasets(parts, out, output=numbered)),
        "select": (
            photos.count // 2,
            lambda out: select_samples(source, out, number=photos.count // 2),
        ),
        "cp": (photos.count, partial(_cp, tars)),
    }
    contestants = [
        Contestant(name=name, make=partial(_warm, source, tars, partial(_timed, count, copy)))
        for name, (count, copy) in entries.items()
    ]
    report(
        f"Copying samples: {photos}, with a caption each; {options.rounds} rounds",
        compete(chosen(contestants, options.only), options.rounds),
        where=machine("datapipe", cache="warm"),
        references=("cp",),
        unit="samples/s",
        path=options.json,
    )


def _warm(source: Path, tars: list[Path], run: Callable[[], Run]) -> Callable[[], Run]:
    """Read all that is copied, so that it is in the page cache."""
    for path in (*tars, *source.glob("*.tar")):
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass
    return run


def _timed(samples: int, copy: Callable[[Path], object]) -> Run:
    """Copy once into a folder that did not exist before and does not afterwards."""
    home = scratch()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    os.sync()  # what others left to be written is not ours to wait for
    try:
        started = time.perf_counter()
        copy(home / "out")
        return Run(samples=samples, seconds=time.perf_counter() - started)
    finally:
        shutil.rmtree(home)


def _cp(tars: list[Path], out: Path) -> None:
    out.mkdir()
    copies = [out / f"{number}.tar" for number in range(len(tars))]
    for tar, copy in zip(tars, copies, strict=True):
        subprocess.run(["cp", tar, copy], check=True)
    subprocess.run(["sync", *copies, out], check=True)


if __name__ == "__main__":
    main()
