"""A source with latency and limited bandwidth: how much of it a loader and a pack use."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec

from benchmarks.common import machine, write_json
from benchmarks.data import bitmaps, packed
from datapipe import ImageSpec, make_loader, pack_dataset

_LATENCY, _RATE = 0.05, 100e6  # seconds, bytes a second
_LATE = 0.05  # seconds
_SENT = 1 << 18  # bytes at a time
_SAMPLES, _BATCH = 8_192, 64
_SKIP, _ROUNDS, _SECONDS = 60, 5, 3.0
_PACKS = 3


def source(path: Path | None) -> None:
    """Print bytes that batches and a pack bring against the source's bandwidth, and as JSON.

    The images are not compressed: the source is to be the limit, not the decoder, also where two
    cores are all that client, workers and server have.
    """
    shards = packed(bitmaps(_SAMPLES))
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(str(shards), there), daemon=True
    )
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    rows: list[dict[str, Any]] = []
    try:
        with TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            for shuffle in (True, "shards", False):
                rows.append(_measure(url, shuffle))
                print(
                    f"shuffle={shuffle!s:7} {rows[-1]['rate'] / 1e6:6.1f} MB/s, "
                    f"{rows[-1]['part']:.2f} of the source ({rows[-1]['low']:.2f} to "
                    f"{rows[-1]['high']:.2f}), {rows[-1]['requests']:,.0f} requests/s"
                )
            rows.append(_measure_pack(url, shards))
            print(
                f"tars: {rows[-1]['part']:.2f} of the source packing, {rows[-1]['download']:.2f} "
                f"downloading alone; {rows[-1]['ratio']:.2f} x ({rows[-1]['low']:.2f} to "
                f"{rows[-1]['high']:.2f})"
            )
    finally:
        server.terminate()
        server.join()
    if path is not None:
        content = {"title": "cache source", "where": machine(cache="warm"), "rows": rows}
        write_json(path, content)


def _measure(url: str, shuffle: Any) -> dict[str, Any]:
    image = ImageSpec(size=32)
    loader = make_loader(
        url, batch_size=_BATCH, image=image, shuffle=shuffle, epochs=None, num_workers=2
    )
    columns = loader.dataset.columns
    sizes = columns.member_size
    traffic = loader.dataset.folder.traffic  # type: ignore[union-attr]
    iterator = iter(loader)
    shares = []
    meta: list[int] = []
    for _ in range(_SKIP):
        next(iterator)
    asked = traffic.requests
    began = time.perf_counter()
    for _ in range(_ROUNDS):
        start, delivered = time.perf_counter(), 0
        while time.perf_counter() - start < _SECONDS:
            batch = next(iterator)
            for key in batch["key"]:
                sample = int(key)
                first, last = columns.sample_member[sample], columns.sample_member[sample + 1]
                delivered += int(sizes[first:last].sum())
        shares.append(delivered / (time.perf_counter() - start) / _RATE)
        meta.append(delivered)
    seconds = time.perf_counter() - began
    loader.close()
    part = statistics.median(shares)
    return {
        "shuffle": str(shuffle),
        "rate": part * _RATE,
        "part": part,
        "low": min(shares),
        "high": max(shares),
        "requests": (traffic.requests - asked) / seconds,
    }


def _measure_pack(url: str, shards: Path) -> dict[str, Any]:
    """Download the tars from the source, and pack them from it, in turns."""
    tars = sorted(shards.glob("*.tar"))
    urls = [f"{url}/{tar.name}" for tar in tars]
    size = sum(tar.stat().st_size for tar in tars)
    parts: dict[str, list[float]] = {"download": [], "pack": []}
    for _ in range(_PACKS):
        for what, taken in parts.items():
            with TemporaryDirectory() as out:
                start = time.perf_counter()
                if what == "pack":
                    pack_dataset("::".join(urls), out, check="header")
                else:
                    fsspec.filesystem("http").get(urls, [f"{out}/{tar.name}" for tar in tars])
                taken.append(size / (time.perf_counter() - start) / _RATE)
    ratios = [pack / alone for pack, alone in zip(parts["pack"], parts["download"], strict=True)]
    return {
        "pack": len(tars),
        "part": statistics.median(parts["pack"]),
        "download": statistics.median(parts["download"]),
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def serve(folder: str, ready: Connection) -> None:
    """Serve files with ranges: each answer after a latency, all together at a limited rate."""
    asyncio.run(_serve(folder, ready))


async def _serve(folder: str, ready: Connection) -> None:
    free = 0.0  # when the line is free again
    loop = asyncio.get_running_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal free
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                name = head.split(b" ", 2)[1].decode().lstrip("/")
                span = re.search(rb"[Rr]ange: bytes=(\d+)-(\d+)", head)
                path = Path(folder) / name
                size = path.stat().st_size
                start, stop = (int(span[1]), int(span[2]) + 1) if span else (0, size)
                await asyncio.sleep(_LATENCY)
                status = "206 Partial Content" if span else "200 OK"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\n\r\n".encode()
                )
                if head.startswith(b"HEAD"):
                    continue
                with path.open("rb") as file:
                    for at in range(start, stop, _SENT):
                        size = min(_SENT, stop - at)
                        # What the server is late it makes up for, as a line that is never idle.
                        free = max(free, time.monotonic() - _LATE) + size / _RATE
                        await asyncio.sleep(max(0.0, free - time.monotonic()))
                        # By the kernel: the server must not take the processors from the loader.
                        await loop.sendfile(writer.transport, file, at, size)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    ready.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()
