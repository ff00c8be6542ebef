"""Raw data behind a URL: downloaded to a staging folder, and packed from there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeGuard

from datapipe.errors import DatapipeError, PackError, StoreError
from datapipe.index.files.derived import cache_folder
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import replace_file
from datapipe.index.tar.listing import expand, names_shards, refuse_urls
from datapipe.pack.journal import working_folder
from datapipe.pack.space import check_room
from datapipe.pack.writers.shards import writing
from datapipe.progress import Progress, readable_size
from datapipe.remote.download import RemoteFiles
from datapipe.remote.folder import RemoteOptions, is_remote
from datapipe.workers.threads import ThreadPool

_AT_ONCE = 64  # files
_AHEAD = 16  # ranges of few files
_NOTES = "fetched.json"


def is_behind_url(raw: object) -> TypeGuard[str]:
    """Return whether raw data is a URL, or a list of tars that are all behind URLs.

    Raises `IndexMismatch` for a list in which some are.
    """
    if not isinstance(raw, str) or raw.startswith("file:"):
        return False
    if not names_shards(raw):
        return is_remote(raw)
    names = expand(raw)
    if all(is_remote(name) and not name.startswith("pipe:") for name in names):
        return True
    refuse_urls(names)
    return False


@contextmanager
def downloaded(
    raw: str,
    staging: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    *,
    space_check: bool,
    lock_check: bool,
    keep: bool,
) -> Iterator[str]:
    """Download raw data, and remove it once the block ends without an error, unless `keep`.

    The block gets its path, or a list of tars. What was downloaded before an interruption is used
    again if the files at the URL are the same.

    Raises:
        PackError: the disk is too full, or the URL cannot be listed.
        StoreError: a file cannot be read, or changed meanwhile.
    """
    options = RemoteOptions(storage_options=storage_options or {})
    source, names = _source(raw, options)
    digest = hashlib.sha256(f"raw {raw}".encode()).hexdigest()[:32]
    home = (Path(staging) if staging else cache_folder() / "staging").absolute() / digest
    data = home / "raw"
    with working_folder(home, lock_check=lock_check) as work:
        try:
            with closing(source), writing(home):
                files = source.files(names)
                _forget_changed(data, work / _NOTES, files)
                _download(source, files, data, home if space_check else None)
                if source.files(names) != files:
                    raise StoreError(
                        f"{raw} changed while it was downloaded; run the command again"
                    )
            paths = [str(data / name) for name in names or ()]
            yield "::".join(paths) if names else str(data)
        except DatapipeError as error:
            # The user knows the URL, not the folder, which we chose.
            here, there = str(data), f"{raw}, downloaded to {data}"
            if here not in str(error):
                raise
            raise type(error)(str(error).replace(here, there, 1)) from error
    if not keep:
        shutil.rmtree(home, ignore_errors=True)


def _source(raw: str, options: RemoteOptions) -> tuple[RemoteFiles, list[str] | None]:
    """Return the folder that holds raw data, and the names of the files; None for all files."""
    urls = expand(raw) if names_shards(raw) else [raw]
    if len(urls) == 1 and not RemoteFiles(raw, options).is_file():
        return RemoteFiles(raw, options), None
    if raw.endswith("/"):
        raise PackError(f"{raw}: folders cannot be listed over HTTP; give a file or a list of tars")
    # Tars of several folders keep their names below the folder that they have in common.
    levels = zip(*(url.split("/")[:-1] for url in urls), strict=False)
    common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    if len(common) < 3:
        raise PackError(f"{raw} names several hosts or buckets; pack each, or copy them to one")
    root = "/".join(common)
    return RemoteFiles(root, options), [url.removeprefix(f"{root}/") for url in urls]


def _forget_changed(data: Path, notes: Path, files: Mapping[str, tuple[int, str]]) -> None:
    """Remove what was downloaded of files that are others now, and note the present ones."""
    try:
        known = unseal(notes.read_bytes())["files"]
    except (OSError, ValueError, KeyError):
        known = {}
    for path in [path for path in data.rglob("*") if path.is_file()]:
        name = path.relative_to(data).as_posix()
        for name_there in (name, name.removesuffix(".part")):
            if name_there in files and known.get(name_there) == list(files[name_there]):
                break
        else:
            path.unlink()
    replace_file(notes, seal({"files": files}).encode())


def _download(
    source: RemoteFiles, files: Mapping[str, tuple[int, str]], data: Path, checked: Path | None
) -> None:
    missing = [name for name in files if not (data / name).is_file()]
    if not missing:
        return
    size = sum(files[name][0] for name in missing)
    if checked is not None:
        there = sum(path.stat().st_size for path in data.rglob("*.part"))
        remedy = "give one with --staging, or fewer files"
        check_room(checked, max(size - there, 0), f"{len(missing):,} files of raw data", remedy)
    ahead = max(_AHEAD // len(missing), 1)

    def fetch(name: str) -> None:
        source.download(name, files[name][0], data / name, ahead)

    with (
        Progress("downloading", unit="file", total=len(missing)) as progress,
        closing(ThreadPool(fetch, min(_AT_ONCE, len(missing)), name="datapipe-fetch")) as pool,
    ):
        for _ in pool.run(missing):
            progress.advance(note=f"of {readable_size(size)}")
