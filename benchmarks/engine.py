"""Samples per second of packing by engine: processes of this machine, and tasks of a Ray cluster.

Loose photographs with captions into tar shards, every image checked (check=decode), as in
`benchmarks.pack`. The clusters are started on this machine before the first round. Each round packs
a few samples on its cluster before the time counts, so that the workers run already.

"Ray" by "local" is the price of the engine, "Ray, 2 nodes" by "Ray, 1 node" the gain of a second
node. All processes of a cluster, the driver too, share as many cores as its nodes have. "local" by
"local, 1 core" is what this machine's second core gives to one that needs no cluster.
"""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

from benchmarks.common import Contestant, Run, command, machine, parse, race
from benchmarks.data import Photos, photographs
from benchmarks.pack import pack_datapipe, time_pack
from datapipe.pack.pack_dataset import pack_dataset

_WARM = 512  # samples that are packed before

pack_checked = partial(pack_datapipe, check="decode")


def main() -> None:
    options = parse(command("engine", __doc__), samples=32768, rounds=5)
    photos = photographs(options.samples)
    clusters: list[Any] = []
    try:
        race(
            contestants(photos, options.workers, clusters),
            options,
            f"Engines: {photos}, with a caption each; {options.rounds} rounds",
            where=machine("datapipe", "ray", "simplejpeg", cache="warm"),
            references=("local", "local, 1 core", "Ray, 1 node"),
            unit="samples/s",
        )
    finally:
        for cluster in clusters:
            cluster.shutdown()


def contestants(photos: Photos, workers: int, clusters: list[Any]) -> list[Contestant]:
    """All that are compared; the clusters that they start are added to `clusters`."""

    def on_ray(nodes: int, cpus: int) -> Any:
        from ray.cluster_utils import Cluster

        cores = set(sorted(os.sched_getaffinity(0))[: nodes * cpus])
        with only_on(cores):
            cluster = Cluster()
            clusters.append(cluster)
            node: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False}
            for _ in range(nodes):
                cluster.add_node(object_store_memory=1 << 30, **node)
            cluster.wait_for_nodes()
        return partial(time_ray, photos, cluster.address, cores)

    return [
        Contestant(
            "local",
            partial(partial, time_pack, photos, partial(pack_checked, workers=workers)),
            f"{workers} processes; fsync; every image read whole, checksums and index",
        ),
        Contestant("local, 1 core", partial(partial, time_alone, photos), "one process"),
        Contestant("Ray", partial(on_ray, 1, workers), f"a node of {workers} cores"),
        Contestant("Ray, 1 node", partial(on_ray, 1, 1), "a node of one core"),
        Contestant("Ray, 2 nodes", partial(on_ray, 2, 1), "two nodes of one core"),
    ]


def time_alone(photos: Photos) -> Run:
    # A program of its own, since workers come from a template that has all cores.
    core = {min(os.sched_getaffinity(0))}
    with ProcessPoolExecutor(1, get_context("spawn"), os.sched_setaffinity, (0, core)) as alone:
        return alone.submit(time_pack, photos, partial(pack_checked, workers=1)).result()


def time_ray(photos: Photos, address: str, cores: set[int]) -> Run:
    """Pack once on a cluster whose workers are running."""
    import ray

    with only_on(cores):
        ray.init(address=address, logging_level=logging.ERROR)
        try:
            pack_dataset(photos.raw, format="folder", engine="ray", dry_run=True, limit=_WARM)
            return time_pack(photos, partial(pack_checked, engine="ray"))
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


if __name__ == "__main__":
    main()
