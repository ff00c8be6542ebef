"""Images per second and core of datapipe, against cores and against the size of the dataset.

    python -m benchmarks.scaling

The same 1,024 photographs stand behind every size, as links to one shard, so that the page cache is
warm for all and what differs is the work of the loader: index, plan, order. The start-up is the
time from `iter()` to the first batch of an epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import Contestant, Run, chosen, compete, machine, parse, report
from benchmarks.data import Photos, photographs
from benchmarks.peers.process import Peer, contestant
from benchmarks.peers.work import BATCH, SIDE, Task
from datapipe.index.manifest import MANIFEST, read_manifest
from datapipe.pack.pack_dataset import pack_dataset

_PHOTOGRAPHS = 1024
_TIMES = (1, 10, 100, 1000)
_CORES = (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument(
        "--times", type=int, nargs="+", default=_TIMES, help="datasets of so many times 1,024"
    )
    # The longest run of the smallest dataset: its whole epoch.
    options = parse(parser, samples=_PHOTOGRAPHS, rounds=5)
    photos = photographs(_PHOTOGRAPHS)
    steps = min(options.samples, _PHOTOGRAPHS) // BATCH
    where = machine(cache="warm")
    with ExitStack() as stack:
        entries = [
            entrant(photos, times, cores, options.dtype, steps, stack, where["versions"])
            for times in options.times
            for cores in _CORES
            if cores <= options.workers
        ]
        results = compete(chosen(entries, options.only), options.rounds)
    report(
        f"datapipe: {photos}, repeated -> {SIDE}x{SIDE} antialiased, batches of {BATCH}, "
        f"{options.dtype}; as many workers as cores, {steps} batches a round, "
        f"{options.rounds} rounds",
        results,
        where=where,
        references=(entries[0].name,),
        unit="img/s per core",
        path=options.json,
    )


def entrant(
    photos: Photos,
    times: int,
    cores: int,
    dtype: str,
    steps: int,
    stack: ExitStack,
    versions: dict[str, str],
) -> Contestant:
    """Run the loader on a number of cores, with a dataset of `times` the photographs."""
    name = f"{photos.count * times:,} samples, {cores} {'core' if cores == 1 else 'cores'}"
    shards = repeated(photos, times)
    task = Task(
        raw=str(photos.raw), shards=str(shards), forms="", dtype=dtype, workers=cores, steps=steps
    )
    inner = contestant(Peer(name=name, module="ours", ours=True), task, stack, versions)

    def make() -> Callable[[], Run]:
        run = inner.make()

        def per_core() -> Run:
            done = run()
            return dataclasses.replace(done, seconds=done.seconds * cores)

        return per_core

    return Contestant(name=name, make=make)


def repeated(photos: Photos, times: int) -> Path:
    """Return a dataset whose shards are all the same one; make it if missing."""
    single = photos.raw.with_name(f"{photos.raw.name}-single")
    pack_dataset(photos.raw, single, format="folder", shard_size=photos.count)
    if times == 1:
        return single
    out = photos.raw.with_name(f"{photos.raw.name}-x{times}")
    if out.exists():
        return out
    temporary = out.with_name(f"{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    manifest = read_manifest(single)
    (shard,), (part,) = manifest.shards, manifest.parts
    shards = []
    for number in range(times):
        link = dataclasses.replace(
            shard, name=f"shard-{number:06d}.tar", index=f"shard-{number:06d}.parquet"
        )
        os.link(single / shard.name, temporary / link.name)
        os.link(single / shard.index, temporary / link.index)
        shards.append(link)
    part = dataclasses.replace(part, shards=times, inputs=part.inputs * times)
    document = dataclasses.replace(manifest, shards=tuple(shards), parts=(part,))
    (temporary / MANIFEST).write_text(document.to_json())
    temporary.rename(out)
    return out


if __name__ == "__main__":
    main()
