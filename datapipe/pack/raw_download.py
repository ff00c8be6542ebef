"""Raw data behind a URL: downloaded to a staging folder, and packed from there.

Tars arrive while those before them are packed. Until then their places hold files of the right size
that no reader takes for tars. All other files arrive before anything is looked at, and so do tars
beside files that do not belong to a tar: recognition may look into all of those.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from datapipe.errors import DatapipeError, PackError, StoreError
from datapipe.index.files.derived import cache_folder
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import replace_file
from datapipe.index.tar.headers import BLOCK
from datapipe.pack.journal import working_folder
from datapipe.pack.space import check_room
from datapipe.pack.writers.shards import writing
from datapipe.progress import Progress, readable_size
from datapipe.remote.download import RANGE, RemoteFiles
from datapipe.remote.folder import RemoteOptions
from datapipe.report.table import counted
from datapipe.workers.threads import ThreadPool, ThreadResults

_AT_ONCE = 64  # files
_AHEAD = 16  # ranges of few files
_NOTES = "fetched.json"
# Files that tell of a tar; of tables, those that are never taken for records
_COMPANION = re.compile(r"((?:.*/)?\d+)\.parquet|(.*)(?:\.idx|\.index\.parquet|_stats\.json)")
_HIDDEN = re.compile(r"(^|/)\.")
# First block of a placeholder: no tar header, so reading a placeholder as a tar is an error
_ABSENT = b"This tar is still to be downloaded.".ljust(BLOCK, b"\n")


class Arrival:
    """Raw data, of which some tars may still be on their way.

    Attributes:
        raw: path of it, or a list of tars.
        confirm: to be called when all that was wanted is read; raises `StoreError` if something at
            the URL has changed meanwhile.
    """

    def __init__(
        self,
        raw: str,
        coming: Sequence[Path],
        arrived: ThreadResults[str, Path],
        confirm: Callable[[], None],
    ) -> None:
        self.raw, self.confirm = raw, confirm
        self._coming, self._arrived = {*coming}, arrived
        self._error: DatapipeError | None = None
        arrived.wait(0)  # which begins the first downloads

    def wait(self, path: Path) -> None:
        """Return when a file is here; raises `StoreError` if it cannot be downloaded."""
        while path in self._coming:
            try:
                if self._error is not None:
                    raise self._error
                self._coming.remove(next(self._arrived))
            except DatapipeError as error:
                self._error = error
                raise

    def wait_for_all(self) -> None:
        for path in list(self._coming):
            self.wait(path)


@contextmanager
def downloaded(
    raw: str,
    urls: Sequence[str],
    staging: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    *,
    space_check: bool,
    lock_check: bool,
    keep: bool,
) -> Iterator[Arrival]:
    """Download raw data from its URLs; remove it once the block ends without an error.

    With `keep`, it is not removed. What was downloaded before an interruption is used again if the
    files at the URL are the same. PackError if the disk is too full or the URL cannot be listed,
    StoreError if a file cannot be read or changed meanwhile.
    """
    options = RemoteOptions(storage_options=storage_options or {})
    source, names = _source(raw, urls, options)
    digest = hashlib.sha256(f"raw {raw}".encode()).hexdigest()[:32]
    home = (Path(staging) if staging else cache_folder() / "staging").absolute() / digest
    data, begun = home / "raw", home / "begun"  # readers see only files that are whole
    versions: dict[str, tuple[int, str]] = {}  # of tars that are downloaded while others are packed

    def fetch(ahead: int, name: str) -> Path:
        part, path = begun / name, data / name
        with writing(home):
            source.download(name, files[name][0], part, ahead)
            # Nothing may be packed of a tar that changes on its way; it is asked for alone, as
            # listing all again for each would take too long.
            if name in versions and source.files([name])[name] != versions[name]:
                check()
            path.parent.mkdir(parents=True, exist_ok=True)
            part.replace(path)
        return path

    # Once packing has begun, there may be shards of what has changed.
    def check(remedy: str = "pack it into a new OUT") -> None:
        if source.files(names) != files:
            raise StoreError(f"{raw} changed while it was downloaded; {remedy}")

    with working_folder(home, lock_check=lock_check) as work:
        try:
            with closing(source), writing(home):
                files = source.files(names)
                _forget_changed((data, begun), work / _NOTES, files)
                missing = {name: files[name][0] for name in files if not (data / name).is_file()}
                if space_check and missing:
                    held = sum(p.stat().st_size for p in begun.rglob("*") if p.is_file())
                    size = max(sum(missing.values()) - held, 0)
                    remedy = "give one with --staging, or fewer files"
                    check_room(home, size, f"{counted(len(missing), 'file')} of raw data", remedy)
                later = [name for name in _may_come_later(files, names) if name in missing]
                first = [name for name in missing if name not in {*later}]
                if first:
                    _fetch_all(first, fetch, sum(missing[name] for name in first))
                versions.update(source.files(later) if later else {})
                check("run the command again")
                for name in later:
                    _hold_place(data / name, missing[name])
            mean = max(sum(missing[name] for name in later) // max(len(later), 1), 1)
            at_once = min(max(_AHEAD * RANGE // mean, 2), _AT_ONCE)
            paths = [str(data / name) for name in names or ()]
            with (  # At the end, no more files are begun, then reads end, and then the threads.
                _pool(fetch, at_once) as pool,
                closing(source),
                closing(pool.run(later)) as arrived,
            ):
                yield Arrival(
                    "::".join(paths) if names else str(data),
                    [data / name for name in later],
                    arrived,
                    check if later else lambda: None,
                )
        except DatapipeError as error:
            # The user knows the URL, not the folder, which we chose.
            here, there = str(data), f"{raw}, downloaded to {data}"
            if here not in str(error):
                raise
            raise type(error)(str(error).replace(here, there, 1)) from error
    if not keep:
        shutil.rmtree(home, ignore_errors=True)


def _source(
    raw: str, urls: Sequence[str], options: RemoteOptions
) -> tuple[RemoteFiles, list[str] | None]:
    """Return the folder that holds raw data, and the names of the files; None for all files."""
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


def _forget_changed(
    folders: Iterable[Path], notes: Path, files: Mapping[str, tuple[int, str]]
) -> None:
    """Remove what was downloaded of files that are others now, and note the present ones."""
    try:
        known = unseal(notes.read_bytes())["files"]
    except (OSError, ValueError, KeyError):
        known = {}
    for folder in folders:
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            name = path.relative_to(folder).as_posix()
            if name not in files or known.get(name) != list(files[name]) or _is_absent(path):
                path.unlink()
    replace_file(notes, seal({"files": files}).encode())


def _fetch_all(names: Sequence[str], fetch: Callable[[int, str], Path], size: int) -> None:
    with (
        Progress("downloading", unit="file", total=len(names)) as progress,
        _pool(fetch, min(_AT_ONCE, len(names))) as pool,
    ):
        for _ in pool.run(names):
            progress.advance(note=f"of {readable_size(size)}")


def _pool(
    fetch: Callable[[int, str], Path], at_once: int
) -> AbstractContextManager[ThreadPool[str, Path]]:
    """Return threads that download so many files at once."""
    work = partial(fetch, max(_AHEAD // at_once, 1))
    return closing(ThreadPool(work, at_once, name="datapipe-fetch"))


def _may_come_later(files: Mapping[str, tuple[int, str]], names: Sequence[str] | None) -> list[str]:
    """Return the tars behind the first, in order, if nothing but what belongs to tars is here."""
    order = names or sorted(files, key=lambda name: name.split("/"))
    tars = {
        name: name[:-4] for name in order if name.endswith(".tar") and files[name][0] >= 2 * BLOCK
    }
    for name in {*files} - {*tars}:
        about = _COMPANION.fullmatch(name)
        of_tar = about is not None and (about[1] or about[2]) in tars.values()
        if not (of_tar or name.endswith(".md") or _HIDDEN.search(name)):
            return []
    return [*tars][1:]


def _hold_place(path: Path, size: int) -> None:
    """Write a placeholder, as large as the tar that will replace it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(_ABSENT)
        file.truncate(size)


def _is_absent(path: Path) -> bool:
    """Return whether a file is a placeholder; a crash may leave one of zeros alone."""
    if path.suffix != ".tar":
        return False
    with path.open("rb") as file:
        start = file.read(BLOCK)
    return start == _ABSENT or not start.strip(b"\0")
