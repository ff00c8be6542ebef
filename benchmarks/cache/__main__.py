"""Gains of caches: decoded images from memory, hits, reads ahead, and nothing that grows.

    python -m benchmarks.cache second    # epochs from a decoded memory cache, against JPEG loaders
    python -m benchmarks.cache hits      # how many reads a cache serves, pinned, by next use, LRU
    python -m benchmarks.cache source    # a source with 50 ms latency and 100 MB/s
    python -m benchmarks.cache days      # a thousand epochs: memory, threads, open files

`second`: the photographs of `benchmarks.loaders`, 336x336, every image decoded once before the
first round; the limit copies as many uint8 images in a random order into reused memory.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from benchmarks.cache.days import days
from benchmarks.cache.hits import hits
from benchmarks.cache.source import source
from benchmarks.common import chosen, compete, machine, parse, report
from benchmarks.data import packed, photographs
from benchmarks.loaders import FFCV, OURS, describe
from benchmarks.peers.process import Peer, contestant
from benchmarks.peers.work import Task

EPOCHS = 24  # of a round: one takes a fraction of a second

CACHED = Peer(
    name="datapipe, cached",
    module="ours",
    options={"cached": "4GB", "epochs": EPOCHS},
    note="threads; decoded images in memory",
    ours=True,
)
GATHER = Peer(
    name="limit: gather",
    module="limits",
    options={"which": "gather"},
    note="threads; torch.index_select of uint8 into reused memory",
    ours=True,
)
PEERS = (CACHED, OURS, *FFCV, GATHER)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("second", "hits", "source", "days"))
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    options = parse(parser, samples=1024, rounds=5)
    if options.what == "second":
        second(options)
    else:
        {"hits": hits, "source": source, "days": days}[options.what](options.json)


def second(options: argparse.Namespace) -> None:
    """Epochs after the first."""
    photos = photographs(options.samples)
    task = Task(
        raw=str(photos.raw),
        shards=str(packed(photos)),
        forms=str(photos.raw.with_name(f"{photos.raw.name}-forms")),
        dtype=options.dtype,
        workers=options.workers,
    )
    where = machine(cache="warm")
    versions: dict[str, str] = where["versions"]
    with ExitStack() as stack:
        entries = [contestant(peer, task, stack, versions) for peer in PEERS]
        results = compete(chosen(entries, options.only), options.rounds)
    report(
        f"{describe(photos, task)}; {options.workers} workers each, {options.rounds} rounds",
        results,
        where=where,
        references=("ffcv", "ffcv q90", "limit: gather"),
        unit="img/s",
        path=options.json,
    )


if __name__ == "__main__":
    main()
