"""Gains of caches: decoded images from memory, hits, reads ahead, and nothing that grows.

    python -m benchmarks.cache second    # epochs from a decoded memory cache, against JPEG loaders
    python -m benchmarks.cache hits      # how many reads a cache serves, pinned, by next use, LRU
    python -m benchmarks.cache source    # a source with 50 ms latency and 100 MB/s
    python -m benchmarks.cache days      # a thousand epochs: memory, threads, open files

`second`: the photographs of `benchmarks.loaders`, 336x336, every image decoded once before the
first round; the limit copies as many uint8 images in a random order into reused memory.
"""

from benchmarks.cache.days import days
from benchmarks.cache.hits import hits
from benchmarks.cache.source import source
from benchmarks.common import command, parse
from benchmarks.data import photographs
from benchmarks.loaders import FFCV, OURS, task_of, title
from benchmarks.peers.process import Peer, race_peers

EPOCHS = 24  # of a round: one takes a fraction of a second

CACHED = Peer(
    "datapipe, cached",
    "ours",
    "threads; decoded images in memory",
    {"cached": "4GB", "epochs": EPOCHS},
)
GATHER = Peer(
    "limit: gather",
    "limits",
    "threads; torch.index_select of uint8 into reused memory",
    {"which": "gather"},
)
PEERS = (CACHED, OURS, *FFCV, GATHER)


def main() -> None:
    parser = command("cache", __doc__)
    parser.add_argument("what", choices=("second", "hits", "source", "days"))
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    options = parse(parser, samples=1024, rounds=5)
    if options.what != "second":
        {"hits": hits, "source": source, "days": days}[options.what](options.json)
        return
    photos = photographs(options.samples)
    task = task_of(photos, options)
    references = ("ffcv", "ffcv q90", "limit: gather")
    race_peers(PEERS, task, options, title(photos, task, options), references=references)


if __name__ == "__main__":
    main()
