"""Samples per second of packing: loose photographs with captions into tar shards.

Every contestant lists the folder, reads all files and writes a tar of them to a fresh folder on the
same disk, which is deleted after the run. datapipe also reads every header (check=header) or
all of every image (check=decode), takes checksums, writes an index and syncs to disk (fsync); the
others do not sync, unless their name says so. The limit of check=decode is decoding alone, from
memory; that of both is what the disk takes. Starting its processes is part of datapipe's time.

Without a sync, memory is measured as long as the output fits into it. 131,072 samples (11 GB) make
the disk take part.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import kernels
from benchmarks.common import Contestant, Run, chosen, compete, machine, parse, report
from benchmarks.data import Photos, photographs, scratch
from datapipe.pack.pack_dataset import pack_dataset
from datapipe.pack.workers.prepare import Check

Pack = Callable[[Path, Path], None]
"""Packs a raw folder into an output folder that does not exist yet."""

_BLOCK = 512
_DIRECT = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options = parse(parser, samples=32768, rounds=5)
    photos = photographs(options.samples)
    where = machine("datapipe", "webdataset", "simplejpeg", cache="warm")
    entries = contestants(photos, workers=options.workers)
    results = compete(chosen(entries, options.only), options.rounds)
    report(
        f"Packing: {photos}, with a caption each; {options.rounds} rounds",
        results,
        where=where,
        references=("ShardWriter", "limit: disk", "limit: decode"),
        unit="samples/s",
        path=options.json,
    )


def contestants(photos: Photos, *, workers: int) -> list[Contestant]:
    """All that are compared, ours first and the limit last."""
    timed = partial(time_pack, photos)
    return [
        Contestant(
            name="datapipe, header",
            make=lambda: partial(timed, partial(pack_datapipe, workers=workers, check="header")),
            note=f"{workers} processes; fsync; checksums and index",
        ),
        Contestant(
            name="datapipe, decode",
            make=lambda: partial(timed, partial(pack_datapipe, workers=workers, check="decode")),
            note=f"{workers} processes; fsync; every image read whole, checksums and index",
        ),
        Contestant(
            name="ShardWriter",
            make=lambda: partial(timed, make_shard_writer(sync=False)),
            note="webdataset, one process; no fsync",
        ),
        Contestant(
            name="ShardWriter, fsync",
            make=lambda: partial(timed, make_shard_writer(sync=True)),
            note="the same, then fsync",
        ),
        Contestant(
            name="GNU tar",
            make=lambda: partial(timed, pack_gnu_tar),
            note="one process; no fsync",
        ),
        Contestant(
            name="concatenation",
            make=lambda: partial(timed, pack_concatenation),
            note="Python, 512-byte headers without content; no fsync",
        ),
        Contestant(
            name="limit: disk",
            make=lambda: partial(timed, partial(write_directly, size=tar_bytes(photos))),
            note="as many bytes from one buffer, direct writes of 8 MiB and fsync; nothing is read",
        ),
        Contestant(
            name="limit: decode",
            make=lambda: partial(kernels.decode, photos.read(), workers),
            note=f"{workers} threads; libjpeg-turbo alone, from memory, nothing written",
        ),
    ]


def time_pack(photos: Photos, contestant: Pack) -> Run:
    """Pack once into a folder that did not exist before and does not afterwards."""
    home = scratch()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    os.sync()  # what others left to be written is not ours to wait for
    try:
        started = time.perf_counter()
        contestant(photos.raw, home / "out")
        seconds = time.perf_counter() - started
        written = sum(path.stat().st_size for path in (home / "out").glob("*.tar"))
        assert written > photos.encoded, f"{written} bytes were written of {photos.encoded}"
    finally:
        shutil.rmtree(home)
    return Run(samples=photos.count, seconds=seconds)


def pack_datapipe(raw: Path, out: Path, *, workers: int, check: Check) -> None:
    done = pack_dataset(raw, out, format="folder", workers=workers, check=check)
    assert not done.rejected, f"{done.rejected} photographs were rejected"


def make_shard_writer(*, sync: bool) -> Pack:
    """Return the loop that webdataset's users write."""
    import webdataset

    def loop(raw: Path, out: Path) -> None:
        out.mkdir()
        with webdataset.ShardWriter(
            str(out / "shard-%06d.tar"), verbose=0, post=fsync if sync else None
        ) as writer:
            for number, image in enumerate(list_images(raw)):
                with open(image, "rb") as file:
                    data = file.read()
                with open(image.removesuffix(".jpg") + ".txt", encoding="utf-8") as file:
                    text = file.read()
                writer.write({"__key__": f"{number:09d}", "jpg": data, "txt": text})

    return loop


def pack_gnu_tar(raw: Path, out: Path) -> None:
    out.mkdir()
    command = ["tar", "--format=ustar", "--sort=name", "--hard-dereference", "-C", str(raw), "-cf"]
    subprocess.run([*command, str(out / "shard.tar"), *sorted(os.listdir(raw))], check=True)


def pack_concatenation(raw: Path, out: Path) -> None:
    out.mkdir()
    header = bytes(_BLOCK)
    with open(out / "shard.tar", "wb") as shard:
        for image in list_images(raw):
            for name in (image, image.removesuffix(".jpg") + ".txt"):
                with open(name, "rb") as file:
                    data = file.read()
                shard.write(header)
                shard.write(data)
                shard.write(bytes(-len(data) % _BLOCK))


def write_directly(raw: Path, out: Path, *, size: int) -> None:
    """Measure the disk's best rate: past the page cache, from memory that is warm."""
    out.mkdir()
    with mmap.mmap(-1, _DIRECT) as buffer:
        buffer[:] = os.urandom(_DIRECT)
        descriptor = os.open(out / "shard.tar", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
        try:
            for _ in range(-(-size // _DIRECT)):
                os.write(descriptor, buffer)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def tar_bytes(photos: Photos) -> int:
    """Size of the photographs and their captions in tar files."""
    files = (path.stat().st_size for path in photos.raw.rglob("*") if path.is_file())
    return sum(_BLOCK + -(-size // _BLOCK) * _BLOCK for size in files)


def list_images(raw: Path) -> list[str]:
    """Paths of the JPEG files below a folder, in order."""
    return sorted(
        os.path.join(place, name)
        for place, _, names in os.walk(raw)
        for name in names
        if name.endswith(".jpg")
    )


def fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
