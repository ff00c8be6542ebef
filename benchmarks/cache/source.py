"""A source with latency and limited bandwidth: how much of it a loader and a pack use."""

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

from benchmarks.common import Spread, machine, show, write_json
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
            rows += [_measure(url, shuffle) for shuffle in (True, "shards", False)]
            rows.append(_measure_pack(url, shards))
    finally:
        server.terminate()
        server.join()
    show("Bytes a second, and their part of what the source can send", rows)
    write_json(path, {"title": "cache source", "where": machine(cache="warm"), "rows": rows})


def _measure(url: str, shuffle: Any) -> dict[str, Any]:
    how: dict[str, Any] = {"shuffle": shuffle, "epochs": None, "num_workers": 2}
    loader = make_loader(url, batch_size=_BATCH, image=ImageSpec(size=32), **how)
    columns = loader.dataset.columns
    traffic = loader.dataset.folder.traffic  # type: ignore[union-attr]
    iterator = iter(loader)
    shares = []
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
                delivered += int(columns.member_size[first:last].sum())
        shares.append(delivered / (time.perf_counter() - start) / _RATE)
    seconds = time.perf_counter() - began
    loader.close()
    part, asked = Spread.of(shares), traffic.requests - asked
    row = {"shuffle": str(shuffle), "rate": part.median * _RATE, "part": part.median}
    return row | {"low": part.low, "high": part.high, "requests": asked / seconds}


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
    pairs = zip(parts["pack"], parts["download"], strict=True)
    ratio = Spread.of([pack / alone for pack, alone in pairs])
    packing, alone = (statistics.median(parts[what]) for what in ("pack", "download"))
    row = {"pack": len(tars), "part": packing, "download": alone}
    return row | {"ratio": ratio.median, "low": ratio.low, "high": ratio.high}


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
