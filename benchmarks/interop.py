"""Check that other readers of tar shards return every member of every sample, byte for byte.

What they read is compared with what Python's tarfile reads. Sidecars are written for links to the
shards in a temporary folder, so that the shards' own folder stays as it is. Exit code 1 says that
a reader gave other bytes or failed; one that is not installed is named and passed over.
"""

import hashlib
import logging
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Row, command, show
from benchmarks.data import HOME
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


class View(NamedTuple):
    """Shards to read: a folder of links to them, in order, with sidecars.

    `expected` has the digest of each member's content by key and extension, in order.
    """

    folder: Path
    shards: list[str]
    expected: dict[str, dict[str, bytes]]
    extensions: list[str]


class Reader(NamedTuple):
    """One way to read shards: `read` imports the package, and yields key and members of samples.

    The note says what it takes to get bytes from it.
    """

    name: str
    package: str
    read: Callable[[View], Iterable[tuple[str, Members]]]
    note: str = ""


def main() -> None:
    parser = command("interop", __doc__)
    parser.add_argument("shards", nargs="*", type=Path, help="folders; by default two small packs")
    names = [reader.name for reader in READERS]
    parser.add_argument("--only", action="append", choices=names, help="this reader; repeatable")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here comes from a hub
    failed = False
    for folder in options.shards or sample_packs():
        with tempfile.TemporaryDirectory() as temporary:
            try:
                view = look(folder, Path(temporary))
            except DatapipeError as error:
                sys.exit(f"interop: {error}")
            chosen = [r for r in READERS if not options.only or r.name in options.only]
            rows = [compare(reader, view) for reader in chosen]
        failed |= any(row["bytes equal"] == "NO" for row in rows)
        members = ", ".join(view.extensions)
        show(f"{folder}: {len(view.shards)} shards, members {members}", rows)
    sys.exit(failed)


def sample_packs() -> list[Path]:
    """Images with captions; and conversations about one image, several or none. Made once."""
    packs = []
    for format in ("folder", "llava"):
        raw = HOME / f"interop-{format}"
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


def compare(reader: Reader, view: View) -> Row:
    """Return a row of the table; "bytes equal" is NO if the reader failed or does not agree."""
    row: Row = {"reader": reader.name, "version": "-", "samples": "-", "members": "-"}
    try:
        row["version"] = version(reader.package.partition("[")[0])
    except PackageNotFoundError:
        note = f"not installed: pip install '{reader.package}'"
        return row | {"bytes equal": "-", "note": note}
    try:
        found = [
            (key, {ext: digest(content) for ext, content in sample.items()})
            for key, sample in reader.read(view)
        ]
    except Exception as error:  # of any kind
        note = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        return row | {"bytes equal": "NO", "note": note}
    equal = len(found) == len(view.expected) and dict(found) == view.expected
    row |= {"samples": len(found), "members": sum(len(sample) for _, sample in found)}
    return row | {"bytes equal": "yes" if equal else "NO", "note": reader.note}


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

    alone = WorkerConfig(rank=0, world_size=1, num_workers=0)
    how: dict[str, Any] = {"split_part": "train", "training": False, "decoder": None}
    dataset = CrudeWebdataset(EPath(str(view.folder)), worker_config=alone, **how)
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
        how: dict[str, Any] = {"split": "train", "streaming": streaming}
        how |= {"data_files": {"train": view.shards}, "features": datasets.Features(features)}
        for row in datasets.load_dataset("webdataset", cache_dir=str(view.folder / "cache"), **how):
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
        samples: dict[str, Members] = {}
        with Path(shard).open("rb") as file:
            for name, content in spdl.io.iter_tarfile(file):
                if parts := split_name(name):
                    samples.setdefault(parts[0], {})[parts[1]] = bytes(content)
        yield from samples.items()


ENERGON = "from .nv-meta/ and SHARD.tar.idx, decoder=None"
DATASETS = "columns named, its text and JSON decoders off"
READERS = [
    Reader("webdataset", "webdataset", read_webdataset),
    Reader("wids", "wids", read_wids, "by sample number, from shardindex.json"),
    Reader("DALI", "nvidia-dali-cuda130", read_dali, "from SHARD.idx; gives an order and no keys"),
    Reader("Energon", "megatron-energon", read_energon, ENERGON),
    Reader("datasets", "datasets", partial(read_datasets, streaming=False), DATASETS),
    Reader("datasets, streaming", "datasets", partial(read_datasets, streaming=True), "likewise"),
    Reader("Ray Data", "ray[data]", read_ray, "decoder=None"),
    Reader("SPDL", "spdl", read_spdl, "iter_tarfile gives names and bytes, not samples"),
]


if __name__ == "__main__":
    main()
