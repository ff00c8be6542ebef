"""Index files that other readers of tar shards want beside them: DALI, wids, Megatron-Energon.

They are made from the manifest and the shards' Parquet indexes; of foreign tars, headers are read
too. Equal datasets give equal bytes, and writing them again changes nothing.

Sources: `wds2idx.py` of NVIDIA DALI 2.x, index version 1.2: a line `v1.2 SAMPLES`, then a line per
sample with `EXTENSION OFFSET SIZE NAME` for each member, everything set apart by spaces.
`widsindex create` of wids 0.1.11: addresses are relative to the file itself; the optional `md5sum`,
which `ShardListDataset` does not look at, would need every byte and is left out. `energon prepare`
of Megatron-Energon 7.4.1, read by 7.0 and later: a tar index holds the byte offset of every sample
and of the end, as unsigned 64-bit integers, little endian. `index.sqlite` is left out: only joined
and auxiliary datasets need it, and `energon prepare --tar-index-only` adds it.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64
from datapipe.errors import IndexMismatch
from datapipe.index.images.header import EXTENSIONS, is_stored_image
from datapipe.index.manifest import Manifest, Shard, fsync_folder, replace_file
from datapipe.index.parquet import checked_index
from datapipe.index.tar.grouping import is_no_data, split_name
from datapipe.index.tar.headers import BLOCK, TarScanner

logger = logging.getLogger(__name__)

_SPACE = re.compile(r"[ \t\n\v\f\r]")
_LONGEST = 100  # bytes; the name field of a header
_REMEDY = "repack the shards with `datapipe pack`, which gives short names, each once"
# webdataset.autodecode, which Energon decodes with, leaves this one as bytes.
_DECODED = EXTENSIONS - {"avif"}
_CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_CAPTIONING = """\
sample_type:
  __module__: megatron.energon
  __class__: CaptioningSample
field_map:
  image: {image}
  caption: txt
"""


class Sidecars:
    """The sidecars of one reader, written into a folder."""

    reads_on = ""  # name of a reader that sees all members of a tar, and not listed ones

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, shard: Shard, table: pa.Table) -> list[Path]:
        """Write what belongs to one shard, whose index is `table`; return the files written."""
        raise NotImplementedError

    def finish(self, *, rerun: bool) -> list[Path]:
        """Write what belongs to the whole dataset, once all shards were added, in their order."""
        return []


class DaliIndexes(Sidecars):
    """`SHARD.idx` beside each shard with a sample, for `index_paths` of `readers.webdataset`."""

    def add(self, shard: Shard, table: pa.Table) -> list[Path]:
        if not table.num_rows:
            return []
        path = self._folder / f"{shard.name.removesuffix('.tar')}.idx"
        lines = [f"v1.2 {table.num_rows}", *_dali_lines(shard, table)]
        _put(path, "".join(f"{line}\n" for line in lines).encode())
        return [path]


def _dali_lines(shard: Shard, table: pa.Table) -> Iterator[str]:
    columns = (table[name].to_pylist() for name in ("key", "ext", "offset", "size"))
    for key, exts, offsets, sizes in zip(*columns, strict=True):
        for ext in exts:
            if _SPACE.search(f"{key}.{ext}"):
                raise IndexMismatch(
                    f"{shard.name}: the name {f'{key}.{ext}'!r} holds a space, which DALI's index "
                    "cannot hold; repack the shards with `datapipe pack`, which writes names "
                    "without spaces"
                )
        members = zip(exts, offsets, sizes, strict=True)
        yield " ".join(f"{ext} {offset} {size} {key}.{ext}" for ext, offset, size in members)


class WidsList(Sidecars):
    """`shardindex.json`, with which `wids.ShardListDataset` opens shards by sample number."""

    reads_on = "wids"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._shards: list[dict[str, Any]] = []

    def add(self, shard: Shard, table: pa.Table) -> list[Path]:
        if urlparse(shard.name).path != shard.name:
            raise IndexMismatch(
                f"{shard.name}: wids reads the name of a shard as a URL, in which some of "
                "these characters have another meaning; rename the shard and index again"
            )
        _check_adjacent(shard, table, "wids")
        _check_wids_names(shard, table)
        self._shards.append({"url": shard.name, "nsamples": shard.samples, "filesize": shard.bytes})
        return []

    def finish(self, *, rerun: bool) -> list[Path]:
        document = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": self._shards}
        path = self._folder / "shardindex.json"
        _put(path, json.dumps(document, indent=2).encode())
        return [path]


def _check_wids_names(shard: Shard, table: pa.Table) -> None:
    """Refuse members that wids cannot tell apart.

    It knows neither prefixes nor extended headers. Where there is one, the plain header may hold
    another name, cut off or with question marks in it.
    """
    names = [
        f"{key}.{ext}"
        for key, exts in zip(table["key"].to_pylist(), table["ext"].to_pylist(), strict=True)
        for ext in exts
    ]
    before = np.concatenate(([0], _ends(table)[:-1]))
    extended = pc.list_flatten(table["offset"]).to_numpy() - before > BLOCK
    for name, is_extended in zip(names, extended.tolist(), strict=True):
        if len(name.encode()) > _LONGEST or (is_extended and not name.isascii()):
            raise IndexMismatch(
                f"{shard.name}: wids cannot read the name {name!r}, which is not ASCII or has "
                f"more than {_LONGEST} bytes; {_REMEDY}"
            )
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise IndexMismatch(
            f"{shard.name}: two members have the name {twice!r}, and wids would return the "
            f"wrong one; {_REMEDY}"
        )


class EnergonMetadata(Sidecars):
    """`SHARD.tar.idx` beside each shard and `.nv-meta/` beside them all.

    Shards without a sample are left out, as Energon refuses them. All others are in the split
    `train`. Samples are `CaptioningSample`s where each has one image that Energon decodes and a
    `.txt`, else crude samples, which a cooker of the user's makes something of.
    """

    reads_on = "Energon"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._counts: dict[str, int] = {}
        self._images: set[str] = set()
        self._captioned = True

    def add(self, shard: Shard, table: pa.Table) -> list[Path]:
        if not table.num_rows:
            return []
        _check_adjacent(shard, table, "Energon")
        for members in set(map(tuple, table["ext"].to_pylist())):
            images = [ext for ext in members if is_stored_image(ext)]
            self._images.update(images)
            self._captioned &= len(images) == 1 and "txt" in members
        self._counts[shard.name] = shard.samples
        path = self._folder / f"{shard.name}.idx"
        last = np.cumsum(pc.list_value_length(table["ext"]).to_numpy()) - 1
        edges = np.zeros(table.num_rows + 1, "<u8")
        edges[1:] = _ends(table)[last]
        _put(path, edges.tobytes())
        return [path]

    def finish(self, *, rerun: bool) -> list[Path]:
        folder = self._folder / ".nv-meta"
        folder.mkdir(exist_ok=True)
        fsync_folder(self._folder)
        for left in folder.glob(".*.tmp-*"):  # by a run that was killed
            left.unlink(missing_ok=True)
        dataset = _CRUDE
        if self._counts and self._captioned and self._images <= _DECODED:
            dataset = _CAPTIONING.format(image=",".join(sorted(self._images)))
        info = folder / ".info.json"
        changed = _put(info, json.dumps({"shard_counts": self._counts}, indent=2).encode())
        path, names = folder / "split.yaml", list(self._counts)
        before = path.read_bytes().count(b"\n  - ") if path.exists() else 0
        settings = {
            folder / "dataset.yaml": (dataset, dataset),
            path: (_split_yaml(names), _split_yaml(names[:before])),  # of fewer shards
        }
        tell = changed or not rerun
        return [info, *(path for path, texts in settings.items() if _settle(path, *texts, tell))]


def _split_yaml(names: Sequence[str]) -> str:
    """Return all shards as `train`; empty splits are named too, as Energon knows them by name."""
    # Energon expands braces in names. A JSON string is a YAML string.
    escaped = (re.sub(r"([{},\\])", r"\\\1", name) for name in names)
    lines = [f"  - {json.dumps(name, ensure_ascii=False)}" for name in escaped]
    train = "\n".join(["  train:", *lines]) if lines else "  train: []"
    return f"split_parts:\n{train}\n  val: []\n  test: []\nexclude: []\n"


def _settle(path: Path, text: str, earlier: str, tell: bool) -> bool:
    """Write settings, unless a person wrote other ones; return whether they are there."""
    if path.exists() and path.read_bytes() not in (text.encode(), earlier.encode()):
        if tell:
            kept = "%s is kept as it was; delete it to have it rebuilt for these shards"
            logger.warning(kept, path)
        return False
    _put(path, text.encode())
    return True


def _put(path: Path, content: bytes) -> bool:
    """Write a file, unless it has this content: its folder may be read-only.

    Returns whether it was written.
    """
    if path.exists() and path.read_bytes() == content:
        return False
    replace_file(path, content)
    return True


def _ends(table: pa.Table) -> Int64:
    """Return the offsets where members end and the next header begins: int64 [members]."""
    offsets: Int64 = pc.list_flatten(table["offset"]).to_numpy()
    sizes: Int64 = pc.list_flatten(table["size"]).to_numpy()
    return -(-(offsets + sizes) // BLOCK) * BLOCK


def _check_adjacent(shard: Shard, table: pa.Table, reader: str) -> None:
    """Refuse members that a reader would group to other samples: every change of key begins one."""
    offsets = pc.list_flatten(table["offset"]).to_numpy()
    misplaced = np.flatnonzero(np.diff(offsets) <= 0)
    if misplaced.size:
        member = int(misplaced[0]) + 1
        sample = pc.list_parent_indices(table["ext"])[member].as_py()
        ext = pc.list_flatten(table["ext"])[member].as_py()
        raise IndexMismatch(
            f"{shard.name}: around {table['key'][sample].as_py()}.{ext}, members of different "
            f"samples alternate or one links to another; {reader} reads a tar from front to back "
            "and would see other samples: repack the shards with `datapipe pack`, which keeps "
            "the members of a sample together"
        )
    keys = table["key"].combine_chunks()
    same = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    if same.any():
        key = keys[int(np.flatnonzero(same)[0])].as_py()
        raise IndexMismatch(
            f"{shard.name}: two adjacent samples have the key {key!r}, and {reader} "
            "would take them for one: repack the shards with `datapipe pack`, which gives each its "
            "own"
        )


_SIDECARS: dict[str, type[Sidecars]] = {
    "dali": DaliIndexes,
    "wids": WidsList,
    "energon": EnergonMetadata,
}
KINDS = tuple(_SIDECARS)
"""Readers whose sidecars can be written."""


def parse_sidecars(text: str) -> tuple[str, ...]:
    """Return the names in a list such as "wids,dali", sorted; `IndexMismatch` for unknown ones."""
    names = sorted({name.strip() for name in text.split(",")} - {""})
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise IndexMismatch(
            f"sidecars are not known for {', '.join(map(repr, unknown))}; choose from "
            f"{', '.join(KINDS)}"
        )
    return tuple(names)


def write_sidecars(
    folder: Path,
    manifest: Manifest,
    kinds: Iterable[str],
    *,
    home: Path | None = None,
    rerun: bool = False,
) -> list[Path]:
    """Write sidecars for the shards in `folder`; return the files written.

    Memory stays at one shard's index. A file appears whole or not at all, those of the whole
    dataset last. What a person may have set (Energon's `dataset.yaml` and `split.yaml`) is kept.
    `home` has the Parquet indexes; by default it is `folder`. On a `rerun`, nothing is said of what
    was kept unless the shards changed.

    Raises `IndexMismatch` if an index is missing or not that of the manifest, a reader cannot be
    told of a member, `folder` cannot be written, or it holds a view, whose sidecars would replace
    those of its source; `StoreError` if a foreign tar is missing or damaged.
    """
    if kinds and manifest.is_view:
        raise IndexMismatch(
            f"{folder} is a view, and sidecars would describe the shards of its source as if they "
            "had no other samples; make shards of it with `datapipe select`, without --view"
        )
    sidecars = [_SIDECARS[kind](folder) for kind in sorted(set(kinds))]
    written = []
    try:
        for shard in manifest.shards if sidecars else ():
            table = checked_index(home or folder, shard).combine_chunks()
            lacking = ""
            if manifest.foreign:
                table, lacking = _as_in_tar(folder / shard.name, table)
                table = table.combine_chunks()
            for sidecar in sidecars:
                if lacking and sidecar.reads_on:
                    raise IndexMismatch(
                        f"{shard.name}: {lacking} is left out of the index, and {sidecar.reads_on} "
                        "reads a tar from front to back and would see it: repack the shards with "
                        "`datapipe pack`, which writes only members that are indexed"
                    )
                written += sidecar.add(shard, table)
        for sidecar in sidecars:
            written += sidecar.finish(rerun=rerun)
    except OSError as error:
        raise IndexMismatch(
            f"{folder}: sidecars cannot be written ({error.strerror or error}), and their readers "
            "look for them beside the shards; make the folder writable, with room, or link "
            "the shards into such a folder and index that"
        ) from error
    return written


def _as_in_tar(path: Path, table: pa.Table) -> tuple[pa.Table, str]:
    """Return an index with the extensions and order that its tar has, and a member that it lacks.

    The index of a JPEG called `0.img` has `img.jpg`, and images
    in the order of their numbers, and it lacks members that were left out. Other readers see the
    tar as it is. The member is the first of a sample; "" without any. Only headers of the tar are
    read; StoreError if it is missing, damaged or cut off.
    """
    listed = set(pc.list_flatten(table["offset"]).to_pylist())
    exts: dict[int, set[str]] = defaultdict(set)  # a hard link has the offset of another
    lacking = ""
    with TarScanner(path) as tar:
        for member in tar:
            if (parts := split_name(member.name)) is None or is_no_data(member.name):
                continue
            exts[member.offset].add(parts[1])
            if member.offset not in listed:
                lacking = lacking or member.name
    columns = (table[name].to_pylist() for name in ("offset", "ext", "size"))
    held = [sorted(zip(*lists, strict=True)) for lists in zip(*columns, strict=True)]
    values = {
        "ext": [
            [ext if ext in exts[offset] else ext.rpartition(".")[0] for offset, ext, _ in of_sample]
            for of_sample in held
        ],
        "offset": [[offset for offset, _, _ in of_sample] for of_sample in held],
        "size": [[size for _, _, size in of_sample] for of_sample in held],
    }
    for name, lists in values.items():
        number = table.schema.get_field_index(name)
        field = table.schema.field(number)
        table = table.set_column(number, field, pa.array(lists, field.type))
    return table, lacking


def present_sidecars(folder: Path) -> tuple[str, ...]:
    """Return the kinds of sidecars that `folder` has."""
    marks = {
        "dali": (path for path in folder.rglob("*.idx") if not path.name.endswith(".tar.idx")),
        "wids": folder.glob("shardindex.json"),
        "energon": folder.glob(".nv-meta/.info.json"),
    }
    return tuple(kind for kind in KINDS if any(True for _ in marks[kind]))
