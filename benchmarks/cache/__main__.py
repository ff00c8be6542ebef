"""Gains of caches: decoded images from memory, hits, reads ahead, and nothing that grows.

    python -m benchmarks.cache second    # epochs from a decoded memory cache, against JPEG loaders
    python -m benchmarks.cache hits      # how many reads a cache serves, pinned, by next use, LRU
    python -m benchmarks.cache source    # a source with 50 ms latency and 100 MB/s
    python -m benchmarks.cache days      # a thousand epochs: memory, threads, open files

`second`: the photographs of `benchmarks.loaders`, 336x336, every image decoded once before the
first round; the limit copies as many uint8 images in a random order into reused memory.
"""

import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.cache.hits import hits
from benchmarks.cache.source import source
from benchmarks.common import command, machine, parse, show, write_json
from benchmarks.data import packed, photographs
from benchmarks.loaders import FFCV, OURS, race_peers
from benchmarks.peers.process import Peer
from datapipe import CacheSpec, ImageSpec, make_loader
from datapipe.progress import Progress

EPOCHS = 24  # of a round: one takes a fraction of a second
_DAYS_EPOCHS = 1000
_LOOKS = (10, 100, 250, 500, 750, 1000)

MEMORY = "threads; decoded images in memory"
CACHED = Peer("datapipe, cached", "ours.loader", MEMORY, {"cached": "4GB", "epochs": EPOCHS})
INDEX = "threads; torch.index_select of uint8 into reused memory"
GATHER = Peer("limit: gather", "ours.limit", INDEX, {"which": "gather"})
PEERS = (CACHED, OURS, *FFCV, GATHER)


def main() -> None:
    parser = command("cache", __doc__)
    parser.add_argument("what", choices=("second", "hits", "source", "days"))
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    options = parse(parser, samples=1024, rounds=5)
    if options.what != "second":
        {"hits": hits, "source": source, "days": days}[options.what](options.json)
        return
    references = ("ffcv", "ffcv q90", "limit: gather")
    race_peers(PEERS, photographs(options.samples), options, references)


def days(path: Path | None) -> None:
    """Print what a process has after so many epochs, and write it as JSON.

    A day of ImageNet at 1,400 images/s is 94 epochs; these are a thousand of a small dataset, with
    a memory that holds a half and a disk that holds all of it.
    """
    shards = packed(photographs(256))
    rows: list[dict[str, Any]] = []
    process = psutil.Process()
    with TemporaryDirectory() as folder:
        image = ImageSpec(size=96, normalize="imagenet")
        cache = CacheSpec(memory="4MB", disk=folder, policy="next-use")
        loader = make_loader(shards, batch_size=32, image=image, cache=cache, num_workers=2)
        with Progress("training on", unit="epoch", total=_DAYS_EPOCHS) as progress:
            for epoch in range(1, _DAYS_EPOCHS + 1):
                for batch in loader:
                    del batch
                progress.advance()
                if epoch in _LOOKS:
                    files = len(os.listdir("/proc/self/fd"))
                    row = {"epochs": epoch, "memory_mb": process.memory_info().rss / 1e6}
                    rows.append(row | {"threads": threading.active_count(), "files": files})
        stats = {name: vars(tier) for name, tier in loader.stats().items()}
        loader.close()
    show("A thousand epochs with a cache", rows)
    print(stats)
    write_json(path, {"title": "cache days", "where": machine(cache="warm"), "rows": rows})


if __name__ == "__main__":
    main()
