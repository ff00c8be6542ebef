"""Samples per second of `datapipe verify`, beside reading the same bytes and taking their crc32.

"crc32 of members" reads each member by its place in the index and compares its crc32, in as many
threads. "crc32 of files" reads the shards from front to back and takes a crc32 of whatever comes:
it knows of no member, and is the least that any check can take. datapipe also compares manifest,
indexes and columns, each header, all padding and the end of each tar. Every contestant has the page
cache warm, or with --cold reads from the disk.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow.compute as pc

import datapipe
from benchmarks.common import Contestant, Run, command, machine, parse, race
from benchmarks.data import checksum, drop_cache, packed, photographs, timed, warm_cache
from datapipe.cpus import available_cpus
from datapipe.index.files.crc32 import crc32
from datapipe.index.parquet import read_index


def main() -> None:
    parser = command("verify", __doc__)
    parser.add_argument("--cold", action="store_true", help="drop the shards from the page cache")
    options = parse(parser, samples=8192, rounds=7)
    photos = photographs(options.samples)
    source = packed(photos)
    checks: dict[str, Callable[[], None]] = {
        "datapipe": partial(_verify, source, deep=False),
        "crc32 of members": partial(_each, source, _members),
        "crc32 of files": partial(_each, source, checksum),
        "datapipe, --deep": partial(_verify, source, deep=True),
    }

    def run(check: Callable[[], None]) -> Run:
        (drop_cache if options.cold else warm_cache)(source.glob("*.tar"))
        return timed(photos.count, check)

    race(
        [Contestant(name, partial(partial, run, check)) for name, check in checks.items()],
        options,
        f"Verifying: {photos}, with a caption each; {options.rounds} rounds",
        where=machine("datapipe", cache="cold" if options.cold else "warm"),
        references=("crc32 of members", "crc32 of files"),
        unit="samples/s",
    )


def _verify(source: Path, *, deep: bool) -> None:
    found = datapipe.verify_dataset(source, deep=deep)
    assert found.is_whole, found.findings


def _each(source: Path, check: Callable[[Path], object]) -> None:
    with ThreadPoolExecutor(available_cpus()) as threads:
        list(threads.map(check, sorted(source.glob("*.tar"))))


def _members(tar: Path) -> None:
    table = read_index(tar.with_suffix(".parquet"))
    columns = [pc.list_flatten(table[name]).to_pylist() for name in ("offset", "size", "crc32")]
    buffer = memoryview(bytearray(max(columns[1])))
    with tar.open("rb", buffering=0) as file:
        for offset, size, expected in zip(*columns, strict=True):
            count = os.preadv(file.fileno(), [buffer[:size]], offset)
            assert crc32(buffer[:count]) == expected


if __name__ == "__main__":
    main()
