"""Samples per second of indexing tars where they are, and of packing them, beside another version.

The tars are photographs with captions. Indexing reads every byte for its checksum, so the limit is
the checksum of the same bytes. `--against` names a checkout of another version, which takes part as
a contestant of the same rounds. Each version runs in its own process, whose start and imports are
not timed.
"""

import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.common import Contestant, Run, command, machine, parse, race
from benchmarks.data import Photos, checksum, fresh, packed, photographs, timed

_HERE = Path(__file__).resolve().parents[1]
_THREADS = 4
_INDEX = "import sys, datapipe; call = lambda: datapipe.index_shards(sys.argv[1], force=True)"
_PACK = (
    "import sys, datapipe; call = lambda: datapipe.pack_dataset("
    "sys.argv[1], sys.argv[2], format='{format}', workers={workers}, check='header')"
)
_TIMED = "; import time; began = time.perf_counter(); call(); print(time.perf_counter() - began)"


def main() -> None:
    parser = command("index", __doc__)
    parser.add_argument("--against", type=Path, help="checkout of another version of datapipe")
    options = parse(parser, samples=32768, rounds=5)
    photos = photographs(options.samples)
    entries = contestants(photos, _bare_tars(photos), options.against, options.workers)
    names = [entry.name for entry in entries]
    race(
        entries,
        options,
        f"Indexing tars of {photos}; {options.rounds} rounds",
        where=machine("datapipe", cache="warm"),
        references=[name for name in names if "before" in name or "limit" in name],
        unit="samples/s",
    )


def contestants(photos: Photos, tars: Path, against: Path | None, workers: int) -> list[Contestant]:
    """Return all that are compared: each way of this version, of the other one, and the limits."""
    ways = {
        "index": (tars, _INDEX),
        "pack tars": (tars, _PACK.format(format="webdataset", workers=workers)),
        "pack a folder": (photos.raw, _PACK.format(format="folder", workers=workers)),
    }
    runs = {
        way if checkout == _HERE else f"{way}, before": partial(
            _in_process, photos.count, raw, code, checkout
        )
        for way, (raw, code) in ways.items()
        for checkout in (_HERE, *([against] if against else []))
    }
    for name, read in (("limit: checksums", _checksums), ("tarfile", _headers)):
        runs[name] = partial(timed, photos.count, partial(read, tars))
    return [Contestant(name, partial(partial, run)) for name, run in runs.items()]


def _bare_tars(photos: Photos) -> Path:
    folder = photos.raw.with_name(f"{photos.raw.name}-tars")
    folder.mkdir(exist_ok=True)
    for shard in packed(photos).glob("*.tar"):
        if not (folder / shard.name).exists():
            os.link(shard, folder / shard.name)
    return folder


def _in_process(samples: int, raw: Path, code: str, checkout: Path) -> Run:
    with fresh() as home:
        out = (home / "index").resolve()
        command = [sys.executable, "-c", code + _TIMED, str(raw.resolve()), str(out)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, cwd=checkout
        )
    return Run(samples=samples, seconds=float(done.stdout.splitlines()[-1]))


def _checksums(tars: Path) -> None:
    """Read all tars and take their checksums, as many at once as the indexer does."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(checksum, sorted(tars.glob("*.tar"))))


def _headers(tars: Path) -> None:
    """List the members of all tars with Python's module, which reads headers alone."""
    for path in sorted(tars.glob("*.tar")):
        with tarfile.open(path) as tar:
            tar.getmembers()


if __name__ == "__main__":
    main()
