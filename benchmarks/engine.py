"""Samples per second of packing by engine: processes of this machine, and tasks of a Ray cluster.

Loose photographs with captions into tar shards, every image checked (check=decode), as in
`benchmarks.pack`. Clusters of one and of two nodes of one core each, and one node of all cores, are
started on this machine before the first round. Each round connects to its cluster and has it pack a
few samples before the time counts, so its workers are running, as those of a long pack are.

The ratio of "Ray" to "local" is the price of the engine, with as many cores. That of "Ray, 2 nodes"
to "Ray, 1 node" is the gain of a second node. All processes of a cluster share as many cores as its
nodes have, the driver among them: else the cluster of one node would use the core of the other.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Contestant, Run, chosen, compete, machine, parse, report
from benchmarks.data import Photos, photographs
from benchmarks.pack import time_pack
from datapipe.pack.pack_dataset import pack_dataset

_WARM = 512  # samples that are packed before


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options = parse(parser, samples=32768, rounds=5)
    photos = photographs(options.samples)
    clusters: list[Any] = []
    try:
        entries = chosen(contestants(photos, options.workers, clusters), options.only)
        results = compete(entries, options.rounds)
    finally:
        for cluster in clusters:
            cluster.shutdown()
    report(
        f"Engines: {photos}, with a caption each; {options.rounds} rounds",
        results,
        where=machine("datapipe", "ray", "simplejpeg", cache="warm"),
        references=("local", "Ray, 1 node"),
        unit="samples/s",
        path=options.json,
    )


def contestants(photos: Photos, workers: int, clusters: list[Any]) -> list[Contestant]:
    """All that are compared; the clusters that they start are added to `clusters`."""

    def on_ray(nodes: int, cpus: int) -> Any:
        from ray.cluster_utils import Cluster

        cores = set(sorted(os.sched_getaffinity(0))[: nodes * cpus])
        with only_on(cores):
            cluster = Cluster()
            clusters.append(cluster)
            for _ in range(nodes):
                cluster.add_node(
                    num_cpus=cpus, object_store_memory=1 << 30, include_dashboard=False
                )
            cluster.wait_for_nodes()
        return partial(time_ray, photos, cluster.address, cores)

    of_one = "of one core"
    return [
        Contestant(
            name="local",
            make=lambda: partial(time_pack, photos, partial(pack, engine="local", workers=workers)),
            note=f"{workers} processes; fsync; every image read whole, checksums and index",
        ),
        Contestant(
            name="Ray", make=lambda: on_ray(1, workers), note=f"one node of {workers} cores"
        ),
        Contestant(name="Ray, 1 node", make=lambda: on_ray(1, 1), note=f"one node {of_one}"),
        Contestant(name="Ray, 2 nodes", make=lambda: on_ray(2, 1), note=f"two nodes {of_one} each"),
    ]


def time_ray(photos: Photos, address: str, cores: set[int]) -> Run:
    """Pack once on a cluster whose workers are running."""
    import ray

    with only_on(cores):
        ray.init(address=address, logging_level=logging.ERROR)
        try:
            pack_dataset(photos.raw, format="folder", engine="ray", dry_run=True, limit=_WARM)
            return time_pack(photos, partial(pack, engine="ray"))
        finally:
            ray.shutdown()


@contextmanager
def only_on(cores: set[int]) -> Iterator[None]:
    """Keep this thread, and what it starts, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pack(raw: Path, out: Path, **options: Any) -> None:
    done = pack_dataset(raw, out, format="folder", check="decode", **options)
    assert not done.rejected, f"{done.rejected} photographs were rejected"


if __name__ == "__main__":
    main()
