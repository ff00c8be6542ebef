"""Samples per second of indexing tars where they are, and of packing them, beside another version.

The tars are photographs with captions. Indexing reads every byte for its checksum, so the limit is
the checksum of the same bytes. `--against` names a checkout of another version, which takes part as
a contestant of the same rounds. Each version runs in a process of its own, whose start and imports
are not timed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.common import Contestant, Run, chosen, compete, machine, parse, report
from benchmarks.data import Photos, packed, photographs, scratch
from datapipe.index.files.crc32 import crc32

_HERE = Path(__file__).resolve().parents[1]
_THREADS = 4
_BLOCK = 1 << 20
_INDEX = "import sys, datapipe; call = lambda: datapipe.index_shards(sys.argv[1], force=True)"
_PACK = (
    "import sys, datapipe; call = lambda: datapipe.pack_dataset("
    "sys.argv[1], sys.argv[2], format='{format}', workers={workers}, check='header')"
)
_TIMED = "; import time; began = time.perf_counter(); call(); print(time.perf_counter() - began)"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, help="checkout of another version of datapipe")
    options = parse(parser, samples=32768, rounds=5)
    photos = photographs(options.samples)
    tars = _bare_tars(photos)
    entries = contestants(photos, tars, options.against, options.workers)
    results = compete(chosen(entries, options.only), options.rounds)
    report(
        f"Indexing tars of {photos}; {options.rounds} rounds",
        results,
        where=machine("datapipe", cache="warm"),
        references=[
            entry.name for entry in entries if "before" in entry.name or "limit" in entry.name
        ],
        unit="samples/s",
        path=options.json,
    )


def contestants(photos: Photos, tars: Path, against: Path | None, workers: int) -> list[Contestant]:
    """Return all that are compared: each way of this version, of the other one, and the limits."""
    ways = {
        "index": (tars, _INDEX),
        "pack tars": (tars, _PACK.format(format="webdataset", workers=workers)),
        "pack a folder": (photos.raw, _PACK.format(format="folder", workers=workers)),
    }
    entries = []
    for way, (raw, code) in ways.items():
        for checkout in (_HERE, *([against] if against else [])):
            name = way if checkout == _HERE else f"{way}, before"
            run = partial(_in_process, photos.count, raw, code, checkout)
            entries.append(Contestant(name=name, make=partial(_same, run)))
    for name, read in (("limit: checksums", _checksums), ("tarfile", _headers)):
        run = partial(_timed, photos.count, partial(read, tars))
        entries.append(Contestant(name=name, make=partial(_same, run)))
    return entries


def _same(run: Callable[[], Run]) -> Callable[[], Run]:
    return run


def _bare_tars(photos: Photos) -> Path:
    """Return a folder with the tars of the packed photographs alone, linked."""
    folder = photos.raw.with_name(f"{photos.raw.name}-tars")
    folder.mkdir(exist_ok=True)
    for shard in packed(photos).glob("*.tar"):
        if not (folder / shard.name).exists():
            os.link(shard, folder / shard.name)
    return folder


def _in_process(samples: int, raw: Path, code: str, checkout: Path) -> Run:
    out = scratch() / "index"
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    os.sync()  # what others left to be written is not ours to wait for
    command = [sys.executable, "-c", code + _TIMED, str(raw.resolve()), str(out.resolve())]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=checkout
    )
    shutil.rmtree(out, ignore_errors=True)
    return Run(samples=samples, seconds=float(done.stdout.splitlines()[-1]))


def _timed(samples: int, read: Callable[[], None]) -> Run:
    began = time.perf_counter()
    read()
    return Run(samples=samples, seconds=time.perf_counter() - began)


def _checksums(tars: Path) -> None:
    """Read all tars and take their checksums, as many at once as the indexer does."""

    def one(path: Path) -> int:
        value = 0
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                value = crc32(block, value)
        return value

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(one, sorted(tars.glob("*.tar"))))


def _headers(tars: Path) -> None:
    """List the members of all tars with Python's module, which reads headers alone."""
    for path in sorted(tars.glob("*.tar")):
        with tarfile.open(path) as tar:
            tar.getmembers()


if __name__ == "__main__":
    main()
