"""Messages about raw data or part of a dataset, given where a packed dataset was expected."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from shlex import quote

from datapipe.index.images.header import is_image_name
from datapipe.index.manifest import MANIFEST

RECORD_KINDS = dict.fromkeys(("json", "jsonl", "jsonlines", "ndjson"), "json") | {
    kind: kind for kind in ("csv", "tsv", "parquet")
}
"""Kinds of files that hold records, by the extensions of their names."""
COMPRESSED_TARS = (".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz")
_ARCHIVES = frozenset({"zip", "7z", "rar"})
_LOOKED_AT = 2000  # entries of a folder and those below
_NAMED = 3
_GIVE = "give the folder that `datapipe pack` wrote"


def pack_first(path: str | os.PathLike[str], holds: str) -> str:
    """Return the message about raw data where a dataset was expected; `holds` says what it is."""
    name = os.fspath(path)
    return (
        f"{name}: this is raw data ({holds}); pack it first: `datapipe pack {quote(name)} shards/`"
    )


def not_a_dataset(path: Path) -> str:
    """Return the message about a file, or a folder without manifest and tars."""
    if (path.parent / MANIFEST).is_file():
        return f"{path} is part of a dataset; give its folder, {path.parent}"
    return _about_file(path) if path.is_file() else _about_folder(path)


def _about_file(path: Path) -> str:
    name = path.name.lower()
    ext = name.removesuffix(".gz").rpartition(".")[2]
    if name.endswith(COMPRESSED_TARS):
        return (
            f"{path} is compressed, and samples cannot be read from the middle of it; decompress a "
            "shard of WebDataset and give the .tar, or unpack raw data and pack its folder with "
            "`datapipe pack FOLDER shards/`"
        )
    if ext in _ARCHIVES:
        return (
            f"{path} is an archive; unpack it, and pack the folder with `datapipe pack FOLDER "
            "shards/`"
        )
    if ext in RECORD_KINDS:
        return pack_first(path, "records")
    if ext in ("yaml", "yml"):
        return (
            f"{path} may be the file of a mixture, but a single dataset is expected; give one of "
            "its datasets"
        )
    if is_image_name(name):
        return (
            f"{path}: this is an image; pack its folder first: `datapipe pack "
            f"{quote(str(path.parent))} shards/`"
        )
    return f"{path} is a file, but neither a .tar shard nor a mixture (.yaml, .json); {_GIVE}"


def _about_folder(path: Path) -> str:
    names = sorted(os.listdir(path))
    if not names:
        return (
            f"{path} is empty, without {MANIFEST} or a .tar file; {_GIVE}, or pack raw data "
            f"into it: `datapipe pack RAW {quote(str(path))}`"
        )
    datasets = [name for name in names[:_LOOKED_AT] if (path / name / MANIFEST).is_file()]
    if datasets:
        which = _listed(datasets)
        return f"{path} is not a dataset, but contains some: {which}; give one of them, or a list"
    raw = _raw_files(path)
    if raw:
        return pack_first(path, _listed(raw))
    return f"{path} has neither {MANIFEST} nor a .tar file (found: {_listed(names)}); {_GIVE}"


def _raw_files(path: Path) -> list[str]:
    files = (
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in sorted(names)
    )
    found = []
    for name in islice(files, _LOOKED_AT):
        ext = name.lower().removesuffix(".gz").rpartition(".")[2]
        if is_image_name(name) or ext in RECORD_KINDS:
            found.append(name)
    return found


def _listed(names: list[str]) -> str:
    more = ", ..." if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
