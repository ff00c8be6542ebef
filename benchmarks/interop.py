"""Check that other readers of tar shards return every member of every sample, byte for byte.

What they read is compared with what Python's tarfile reads. Sidecars are written for links to the
shards in a temporary folder, so that the shards' own folder stays as it is. Exit code 1 says that
a reader gave other bytes or failed; one that is not installed is named and passed over.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import scratch
from datapipe.errors import DatapipeError
from datapipe.index.dataset import open_dataset
from datapipe.index.images.header import is_stored_image
from datapipe.index.manifest import MANIFEST
from datapipe.index.sidecars import KINDS, write_sidecars
from datapipe.index.tar.grouping import split_name
from datapipe.index.tar.listing import index_home, tars_at
from datapipe.pack.pack_dataset import pack_dataset
from tools.make_sample_data import make_sample_data

Members = dict[str, bytes]
"""Contents of one sample's members by extension."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Shards to read.

    Attributes:
        folder: links to the shards, and sidecars for them.
        shards: the links, in order.
        expected: extension to digest of content for every key, in order.
        extensions: of all members.
    """

    folder: Path
    shards: list[str]
    expected: dict[str, dict[str, bytes]]
    extensions: list[str]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way to read shards.

    Attributes:
        name: what the table calls it.
        package: its name on the package index.
        read: key and members of every sample. Imports the package.
        note: what it takes to get bytes from it.
    """

    name: str
    package: str
    read: Callable[[View], Iterable[tuple[str, Members]]]
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shards", nargs="*", type=Path, help="folders; by default two small packs")
    names = [reader.name for reader in READERS]
    parser.add_argument("--only", action="append", choices=names, help="this reader; repeatable")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here comes from a hub
    failed = 0
    for folder in options.shards or sample_packs():
        with tempfile.TemporaryDirectory() as temporary:
            try:
                view = look(folder, Path(temporary))
            except DatapipeError as error:
                sys.exit(f"interop: {error}")
            rows = [HEADER]
            for reader in READERS:
                if not options.only or reader.name in options.only:
                    row, equal = compare(reader, view)
                    failed += not equal
                    rows.append(row)
        print(f"\n{folder}: {len(view.shards)} shards, members {', '.join(view.extensions)}\n")
        print("\n".join(table(rows)), flush=True)
    sys.exit(failed > 0)


def sample_packs() -> list[Path]:
    """Images with captions; and conversations about one image, several or none. Made once."""
    packs = []
    for format in ("folder", "llava"):
        raw = scratch().parent / f"interop-{format}"
        make_sample_data(raw, samples=200, min_side=64, max_side=256, format=format)
        packs.append(raw.with_name(f"{raw.name}-packed"))
        pack_dataset(raw, packs[-1], format=format, shard_size="40")
    return packs


def look(folder: Path, links: Path) -> View:
    """Link the shards of `folder` into `links`, write sidecars there, and read all with tarfile."""
    manifest = open_dataset(folder).manifest
    shards = []
    for shard in manifest.shards:
        link = links / shard.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((folder / shard.name).resolve())
        shards.append(str(link))
    home = folder if (folder / MANIFEST).exists() else index_home(tars_at(folder))
    write_sidecars(links, manifest, KINDS, home=home)
    expected: dict[str, dict[str, bytes]] = {}
    for path in shards:
        with tarfile.open(path) as tar:
            for info in tar:
                file, parts = tar.extractfile(info), split_name(info.name)
                if file and parts:
                    expected.setdefault(parts[0], {})[parts[1]] = digest(file.read())
    extensions = sorted({ext for sample in expected.values() for ext in sample})
    return View(folder=links, shards=shards, expected=expected, extensions=extensions)


def digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def compare(reader: Reader, view: View) -> tuple[list[str], bool]:
    """Return a row of the table, and whether the reader agrees; True if it is not installed."""
    try:
        release = version(reader.package.partition("[")[0])
    except PackageNotFoundError:
        note = f"not installed: pip install '{reader.package}'"
        return [reader.name, "-", "-", "-", "-", note], True
    try:
        found = [
            (key, {ext: digest(content) for ext, content in sample.items()})
            for key, sample in reader.read(view)
        ]
    except Exception as error:
        # Peers raise of everything; whatever it is belongs in the table.
        note = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        return [reader.name, release, "-", "-", "NO", note], False
    equal = len(found) == len(view.expected) and dict(found) == view.expected
    members = sum(len(sample) for _, sample in found)
    row = [reader.name, release, f"{len(found):,}", f"{members:,}", "yes" if equal else "NO"]
    return [*row, reader.note], equal


def table(rows: list[list[str]]) -> Iterator[str]:
    """Format the rows as a table in Markdown."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(map(str.ljust, row, widths)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def grouped(members: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, Members]]:
    """Group the names and contents that a plain tar reader yields into samples."""
    samples: dict[str, Members] = {}
    for name, content in members:
        if parts := split_name(name):
            samples.setdefault(parts[0], {})[parts[1]] = bytes(content)
    yield from samples.items()


def public(sample: dict[str, Any]) -> Members:
    """Return the members of a sample that also holds `__key__` and the like, and gaps."""
    return {
        ext: content
        for ext, content in sample.items()
        if isinstance(content, bytes) and not ext.startswith("__")
    }


def read_webdataset(view: View) -> Iterator[tuple[str, Members]]:
    import webdataset

    for sample in webdataset.WebDataset(view.shards, shardshuffle=False, empty_check=False):
        yield sample["__key__"], public(sample)


def read_wids(view: View) -> Iterator[tuple[str, Members]]:
    import wids

    dataset = wids.ShardListDataset(
        str(view.folder / "shardindex.json"), localname=str, transformations=[]
    )
    for number in range(len(dataset)):
        sample = dataset[number]
        members = {ext[1:]: sample[ext].read() for ext in sample if ext.startswith(".")}
        yield sample["__key__"], members
    dataset.close()


def read_dali(view: View) -> Iterator[tuple[str, Members]]:
    dali: Any = import_module("nvidia.dali")  # its stubs do not know its own idioms

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        return tuple(
            dali.fn.readers.webdataset(
                paths=view.shards,
                index_paths=[f"{shard.removesuffix('.tar')}.idx" for shard in view.shards],
                ext=view.extensions,
                missing_component_behavior="empty",
                name="reader",
            )
        )

    pipe = pipeline()
    pipe.build()
    samples = pipe.reader_meta("reader")["epoch_size"]
    # DALI gives no keys, but the order of the index; and an empty member where there is none.
    for (key, expected), _ in zip(view.expected.items(), range(samples), strict=True):
        contents = [np.array(part[0]).tobytes() for part in pipe.run()]
        pairs = zip(view.extensions, contents, strict=True)
        yield key, {ext: content for ext, content in pairs if content or ext in expected}


def read_energon(view: View) -> Iterator[tuple[str, Members]]:
    from megatron.energon import CrudeWebdataset, WorkerConfig, get_loader
    from megatron.energon.epathlib import EPath

    dataset = CrudeWebdataset(
        EPath(str(view.folder)),
        split_part="train",
        training=False,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        decoder=None,
    )
    for sample in get_loader(dataset.build()):
        yield sample["__key__"], public(sample)


def read_datasets(view: View, *, streaming: bool) -> Iterator[tuple[str, Members]]:
    import datasets
    from datasets.packaged_modules.webdataset.webdataset import WebDataset

    features = {name: datasets.Value("string") for name in ("__key__", "__url__")}
    for ext in view.extensions:
        image = is_stored_image(ext)
        features[ext] = datasets.Image(decode=False) if image else datasets.Value("binary")
    decoders, WebDataset.DECODERS = WebDataset.DECODERS, {}
    datasets.disable_progress_bars()
    try:
        for row in datasets.load_dataset(
            "webdataset",
            data_files={"train": view.shards},
            split="train",
            streaming=streaming,
            features=datasets.Features(features),
            cache_dir=str(view.folder / "cache"),
        ):
            contents = {k: v["bytes"] if isinstance(v, dict) else v for k, v in row.items()}
            yield row["__key__"], public(contents)
    finally:
        WebDataset.DECODERS = decoders


def read_ray(view: View) -> Iterator[tuple[str, Members]]:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        for row in ray.data.read_webdataset(view.shards, decoder=None).iter_rows():
            yield row["__key__"], public(row)
    finally:
        ray.shutdown()


def read_spdl(view: View) -> Iterator[tuple[str, Members]]:
    import spdl.io

    for shard in view.shards:
        with Path(shard).open("rb") as file:
            yield from grouped(spdl.io.iter_tarfile(file))


HEADER = ["reader", "version", "samples", "members", "bytes equal", "note"]
READERS = [
    Reader(name="webdataset", package="webdataset", read=read_webdataset),
    Reader(
        name="wids",
        package="wids",
        read=read_wids,
        note="by sample number, from shardindex.json",
    ),
    Reader(
        name="DALI",
        package="nvidia-dali-cuda130",
        read=read_dali,
        note="from SHARD.idx; gives an order and no keys",
    ),
    Reader(
        name="Energon",
        package="megatron-energon",
        read=read_energon,
        note="from .nv-meta/ and SHARD.tar.idx, decoder=None",
    ),
    Reader(
        name="datasets",
        package="datasets",
        read=lambda view: read_datasets(view, streaming=False),
        note="columns named, its text and JSON decoders off",
    ),
    Reader(
        name="datasets, streaming",
        package="datasets",
        read=lambda view: read_datasets(view, streaming=True),
        note="likewise",
    ),
    Reader(name="Ray Data", package="ray[data]", read=read_ray, note="decoder=None"),
    Reader(
        name="SPDL",
        package="spdl",
        read=read_spdl,
        note="iter_tarfile gives names and bytes, not samples",
    ),
]


if __name__ == "__main__":
    main()
