"""Images per second and core of datapipe, against cores and against the size of the dataset.

    python -m benchmarks.scaling

All sizes have the same 1,024 photographs, as links to one shard. So the page cache is warm, and
only the loader's work differs: index, plan, order. Start-up is the time from `iter()` to the first
batch.
"""

import dataclasses
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.common import Contestant, Run, command, machine, made_once, parse, race
from benchmarks.data import Photos, photographs
from benchmarks.peers.process import Peer, contestant
from benchmarks.peers.work import BATCH, SIDE, Task
from datapipe.index.manifest import read_manifest, write_manifest
from datapipe.pack.pack_dataset import pack_dataset

_PHOTOGRAPHS = 1024
_TIMES = (1, 10, 100, 1000)
_CORES = (1, 2)


def main() -> None:
    parser = command("scaling", __doc__)
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    times = "datasets of so many times 1,024"
    parser.add_argument("--times", type=int, nargs="+", default=_TIMES, help=times)
    # The longest run of the smallest dataset: its whole epoch.
    options = parse(parser, samples=_PHOTOGRAPHS, rounds=5)
    photos = photographs(_PHOTOGRAPHS)
    steps = min(options.samples, _PHOTOGRAPHS) // BATCH
    where = machine(cache="warm")
    with ExitStack() as stack:
        entries = []
        few = [cores for cores in _CORES if cores <= options.workers]
        for times, cores in product(options.times, few):
            name = f"{photos.count * times:,} samples, {cores} {'core' if cores == 1 else 'cores'}"
            given = {"dtype": options.dtype, "workers": cores, "steps": steps}
            task = Task(raw=str(photos.raw), shards=str(repeated(photos, times)), forms="", **given)
            peer = Peer(name, "ours.loader")
            entries.append(per_core(contestant(peer, task, stack, where["versions"]), cores))
        race(
            entries,
            options,
            f"datapipe: {photos}, repeated -> {SIDE}x{SIDE} antialiased, batches of {BATCH}, "
            f"{options.dtype}; as many workers as cores, {steps} batches a round, "
            f"{options.rounds} rounds",
            where=where,
            references=(entries[0].name,),
            unit="img/s per core",
        )


def per_core(loader: Contestant, cores: int) -> Contestant:
    """Return the loader on some cores, whose seconds count for each of them."""

    def scaled(run: Callable[[], Run]) -> Run:
        done = run()
        return dataclasses.replace(done, seconds=done.seconds * cores)

    return loader._replace(make=lambda: partial(scaled, loader.make()))


def repeated(photos: Photos, times: int) -> Path:
    """Return a dataset whose shards are all the same one; make it if missing."""
    single = photos.raw.with_name(f"{photos.raw.name}-single")
    pack_dataset(photos.raw, single, format="folder", shard_size=photos.count)
    if times == 1:
        return single

    def write(folder: Path) -> None:
        manifest = read_manifest(single)
        (shard,), (part,) = manifest.shards, manifest.parts
        shards = []
        for number in range(times):
            name, index = f"shard-{number:06d}.tar", f"shard-{number:06d}.parquet"
            os.link(single / shard.name, folder / name)
            os.link(single / shard.index, folder / index)
            shards.append(dataclasses.replace(shard, name=name, index=index))
        parts = (dataclasses.replace(part, shards=times, inputs=part.inputs * times),)
        repeats = dataclasses.replace(manifest, shards=tuple(shards), parts=parts)
        write_manifest(folder, repeats)

    return made_once(photos.raw.with_name(f"{photos.raw.name}-x{times}"), write)


if __name__ == "__main__":
    main()
