"""Foreign tars that are a dataset: those in a folder, or a list of them.

A list is written as webdataset's users write it: `data/train-{000000..000099}.tar`, several parts
with `::` between them, patterns such as `data/*.tar`.
Source: `expand_urls` of webdataset 1.0.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TypeGuard

from datapipe.errors import IndexMismatch
from datapipe.index.files.derived import cache_folder
from datapipe.index.raw_data import COMPRESSED_TARS
from datapipe.index.tar.headers import DECOMPRESS
from datapipe.remote.folder import is_remote
from datapipe.report.table import counted

logger = logging.getLogger(__name__)

_SIGNS = re.compile(r"::|[{}*?\[]")
_URL_SIGNS = re.compile(r"::|\{.*\}|\*")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_DEPTH = 10  # variables whose values name variables; webdataset's own limit
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/|pipe:", re.IGNORECASE)
_FILE = re.compile(r"file:(//(localhost)?)?(?=/)")


@dataclass(frozen=True, kw_only=True)
class Tars:
    """Tars that someone else wrote."""

    name: str  # what a user calls them
    folder: Path  # what the names of shards are relative to
    shards: tuple[Path, ...]  # in order
    listed: bool  # whether they were named one by one, and not by their folder

    def names(self) -> list[str]:
        """Return the names of the shards, relative to the folder, with forward slashes."""
        return [path.relative_to(self.folder).as_posix() for path in self.shards]


def names_shards(path: object) -> bool:
    """Return whether a path is a list of shards, and no file or folder of that name is there."""
    if not isinstance(path, str | os.PathLike):
        return False
    text = os.fspath(path)
    if not isinstance(text, str) or not _SIGNS.search(text):
        return False
    if "://" in text and not (".tar" in text and _URL_SIGNS.search(text)):
        return False  # `?` begins a query, and `::` chains filesystems of fsspec
    try:
        return not os.path.exists(text)
    except ValueError:  # a NUL
        return False


def is_remote_folder(path: object) -> TypeGuard[str]:
    """Return whether a path is the URL of a folder, and no list of shards."""
    return is_remote(path) and not names_shards(path)


def urls_of(raw: object) -> list[str]:
    """Return the URL of raw data, or those of a list of tars; none for data on this machine.

    Raises `IndexMismatch` for a list in which some are URLs.
    """
    if not isinstance(raw, str) or raw.startswith("file:"):
        return []
    if not names_shards(raw):
        return [raw] if is_remote(raw) else []
    names = expand(raw)
    if all(is_remote(name) and not name.startswith("pipe:") for name in names):
        return names
    refuse_urls(names)
    return []


def tars_at(path: str | os.PathLike[str]) -> Tars:
    """Return the tars in a folder, or those that a list or the name of one tar names.

    Raises `IndexMismatch` if some are missing, compressed, elsewhere, or cannot be written down by
    name.
    """
    if names_shards(path) or (str(path).endswith(".tar") and Path(path).is_file()):
        return _listed(os.fspath(path))
    folder = Path(path)
    # Those of folders below, too, in order of name; hidden ones are left out.
    visible = [
        path
        for path in sorted((*folder.rglob("*.tar*"), *folder.rglob("*.tgz")))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    ]
    _refuse_compressed(str(folder), visible)
    shards = [path for path in visible if path.suffix == ".tar"]
    _refuse_unwritable(shards)
    return Tars(name=str(path), folder=folder, shards=tuple(shards), listed=False)


def index_home(tars: Tars) -> Path:
    """Return where the index of foreign tars goes: beside them, if that can be written.

    The index of a list goes to a hidden folder of its own, since a folder may have many lists.
    """
    folder = tars.folder.resolve()
    names = "\n".join(tars.names()).encode() if tars.listed else b""
    if os.access(tars.folder, os.W_OK) and folder != Path(folder.anchor):
        digest = hashlib.sha256(names).hexdigest()[:16]
        return tars.folder / f".datapipe-{digest}" if tars.listed else tars.folder
    identity = os.fsencode(folder) + (b"\0" + names if tars.listed else b"")
    elsewhere = cache_folder() / hashlib.sha256(identity).hexdigest()[:32]
    logger.warning("%s cannot be written; its index goes to %s", tars.folder, elsewhere)
    return elsewhere


def expand(text: str) -> list[str]:
    """Return the names in a list, in its order, as webdataset expands it.

    Raises `IndexMismatch` if a variable is not set, or a pattern fits no file.
    """
    from braceexpand import braceexpand

    names: list[str] = []
    for part in filter(None, text.split("::")):
        plain = reduce(lambda text, _: _VARIABLE.sub(_variable, text), range(_DEPTH), part)
        try:
            expanded = list(braceexpand(plain))
        except ValueError as error:
            raise IndexMismatch(f"{text}: {error}; close every brace that is opened") from None
        for name in expanded:
            names += _fitting(name)
    return names


def _listed(text: str) -> Tars:
    names = expand(text)
    refuse_urls(names)
    paths = [Path(name) for name in names]
    _refuse_compressed(text, paths)
    others = [path for path in paths if path.suffix != ".tar"]
    if others:
        raise IndexMismatch(
            f"{text} names files that are not .tar ({len(others):,} of {len(paths):,}), for "
            f"example {others[0]}; name only .tar files, such as 'data/*.tar', or give the folder"
        )
    missing = [path for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise IndexMismatch(
            f"{missing[0]}{more} of the {counted(len(paths), 'tar')} that {text} names: no such "
            "file; fetch what is missing, or name those that are there, for example with "
            "'data/*.tar'"
        )
    _refuse_unwritable(paths)
    # The program may go to another folder while these are open.
    absolute = [Path(os.path.abspath(path)) for path in paths]
    counts = Counter(absolute)
    repeated = next((p for p, a in zip(paths, absolute, strict=True) if counts[a] > 1), None)
    if repeated is not None:
        raise IndexMismatch(f"{text} names {repeated} more than once; name each tar once")
    folder = Path(os.path.commonpath([path.parent for path in absolute]))
    return Tars(name=text, folder=folder, shards=tuple(absolute), listed=True)


def _fitting(name: str) -> list[str]:
    """Return the files that a pattern fits, by name; a name without a pattern as it is."""
    name = _FILE.sub("", name, count=1)
    if not glob.has_magic(name) or os.path.exists(name) or _URL.match(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise IndexMismatch(
            f"{name} matches no file; check the pattern (a relative pattern starts at "
            f"{os.getcwd()})"
        )
    return found


def _variable(match: re.Match[str]) -> str:
    variable = f"WDS_{match[1]}"
    if variable not in os.environ:
        raise IndexMismatch(
            f"{match[0]} stands for the environment variable {variable}, as in webdataset, which "
            "is not set; set it, or write the path"
        )
    return os.environ[variable]


def refuse_urls(names: list[str]) -> None:
    """Raise `IndexMismatch`, with what to do, for tars that are not local files."""
    url = next((name for name in names if _URL.match(name)), None)
    if url is None:
        return
    if url.startswith("pipe:"):
        raise IndexMismatch(
            f"{url}: commands are not run; run it yourself into a file (`> shard.tar`) and give "
            "the files"
        )
    tars = f"the {len(names):,} tars" if len(names) > 1 else "them"
    raise IndexMismatch(
        f"{url}: tars behind a URL are read only if their index is beside them; "
        f"pack them (`datapipe pack` takes URLs), or download {tars} and give the files, "
        "or run `datapipe index` where they are files, copy dataset.json and the index "
        "files to the URL and give make_loader the URL of the folder"
    )


def _refuse_compressed(said: str, paths: list[Path]) -> None:
    compressed = [path for path in paths if path.name.lower().endswith(COMPRESSED_TARS)]
    if compressed:
        tool = DECOMPRESS[compressed[0].suffix.lower()[1:]]
        count = f"{len(compressed):,} shards are" if len(compressed) > 1 else "1 shard is"
        command = f"{tool} {shlex.quote(str(compressed[0]))}"
        raise IndexMismatch(
            f"{said}: {count} compressed (for example {compressed[0].name}), and samples cannot be "
            f"read from the middle of them; decompress them first, for example with `{command}` "
            "(images gain nothing from it), or move them elsewhere"
        )


def _refuse_unwritable(shards: list[Path]) -> None:
    for path in shards:
        try:
            path.name.encode()
        except UnicodeEncodeError:
            raise IndexMismatch(f"{path!r}: the name is not UTF-8; rename the file") from None
