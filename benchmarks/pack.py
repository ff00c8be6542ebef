"""Samples per second of packing: loose photographs with captions into tar shards.

Every contestant lists the folder, reads all files and writes a tar of them to a fresh folder on the
same disk. datapipe also reads every header (check=header) or all of every image (check=decode),
takes checksums, writes an index and syncs to disk; the others sync only if their name says so.
Starting its processes is part of datapipe's time. The limits are decoding alone, from memory, and
what the disk takes. 131,072 samples (11 GB) make the disk take part; less fits into memory.
"""

import mmap
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kernels
from benchmarks.common import Contestant, Run, command, machine, parse, race
from benchmarks.data import Photos, fresh, photographs, timed
from datapipe.pack.pack_dataset import pack_dataset

Pack = Callable[[Path, Path], None]
"""Packs a raw folder into an output folder that does not exist yet."""

_BLOCK = 512
_DIRECT = 8 << 20


def main() -> None:
    options = parse(command("pack", __doc__), samples=32768, rounds=5)
    photos = photographs(options.samples)
    race(
        contestants(photos, workers=options.workers),
        options,
        f"Packing: {photos}, with a caption each; {options.rounds} rounds",
        where=machine("datapipe", "webdataset", "simplejpeg", cache="warm"),
        references=("ShardWriter", "limit: disk", "limit: decode"),
        unit="samples/s",
    )


def contestants(photos: Photos, *, workers: int) -> list[Contestant]:
    """Return all that are compared, ours first and the limits last."""
    ours = partial(pack_datapipe, workers=workers)

    def entry(name: str, make: Callable[[], Pack], note: str) -> Contestant:
        return Contestant(name, lambda: partial(time_pack, photos, make()), note)

    ends = "checksums and index"
    whole = f"every image read whole, {ends}"
    direct = "as many bytes from one buffer, direct writes of 8 MiB and fsync; nothing is read"
    processes, headers = f"{workers} processes; fsync", "512-byte headers without content"
    return [
        entry("datapipe, header", lambda: partial(ours, check="header"), f"{processes}; {ends}"),
        entry("datapipe, decode", lambda: partial(ours, check="decode"), f"{processes}; {whole}"),
        entry("ShardWriter", shard_writer, "webdataset, one process; no fsync"),
        entry("ShardWriter, fsync", partial(shard_writer, post=fsync), "the same, then fsync"),
        entry("GNU tar", lambda: pack_gnu_tar, "one process; no fsync"),
        entry("concatenation", lambda: pack_concatenation, f"Python, {headers}; no fsync"),
        entry("limit: disk", lambda: partial(write_directly, size=tar_bytes(photos)), direct),
        Contestant(
            "limit: decode",
            lambda: partial(kernels.decode, photos.read(), workers),
            f"{workers} threads; libjpeg-turbo alone, from memory, nothing written",
        ),
    ]


def time_pack(photos: Photos, pack: Pack) -> Run:
    """Pack once into a folder that did not exist before and does not afterwards."""
    with fresh() as home:
        run = timed(photos.count, lambda: pack(photos.raw, home / "out"))
        written = sum(path.stat().st_size for path in (home / "out").glob("*.tar"))
    assert written > photos.encoded, f"{written} bytes were written of {photos.encoded}"
    return run


def pack_datapipe(raw: Path, out: Path, **options: Any) -> None:
    done = pack_dataset(raw, out, format="folder", **options)
    assert not done.rejected, f"{done.rejected} photographs were rejected"


def shard_writer(post: Callable[[str], None] | None = None) -> Pack:
    """Return the loop that webdataset's users write."""
    import webdataset

    def loop(raw: Path, out: Path) -> None:
        out.mkdir()
        pattern = str(out / "shard-%06d.tar")
        with webdataset.ShardWriter(pattern, verbose=0, post=post) as writer:
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
                shard.writelines((header, data, bytes(-len(data) % _BLOCK)))


def write_directly(raw: Path, out: Path, *, size: int) -> None:
    """Write past the page cache, from warm memory: the disk's best rate."""
    out.mkdir()
    with mmap.mmap(-1, _DIRECT) as buffer:
        buffer[:] = os.urandom(_DIRECT)
        descriptor = os.open(out / "shard.tar", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
        with os.fdopen(descriptor, "wb", buffering=0) as shard:
            for _ in range(-(-size // _DIRECT)):
                shard.write(buffer)
            os.fsync(shard.fileno())


def tar_bytes(photos: Photos) -> int:
    files = (path.stat().st_size for path in photos.raw.rglob("*") if path.is_file())
    return sum(_BLOCK + -(-size // _BLOCK) * _BLOCK for size in files)


def list_images(raw: Path) -> list[str]:
    """Return the JPEG files below a folder, in order, faster than `Path` would."""
    return sorted(
        os.path.join(place, name)
        for place, _, names in os.walk(raw)
        for name in names
        if name.endswith(".jpg")
    )


def fsync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
