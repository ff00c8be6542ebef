"""Folders of derived files: where they go, and how they appear whole."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from datapipe.errors import DatapipeError, IndexMismatch
from datapipe.index.files.block_checksums import Kind, checked_files
from datapipe.index.files.crc32 import crc32, prefix_sums
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import replace_file

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)  # of a dataset's own folder


def cache_folder() -> Path:
    """Return the folder for derived files of datasets whose own folder cannot be written.

    The user's cache folder, or one in the system's temporary folder where that cannot be written;
    DatapipeError if there is neither.
    """
    own = None
    try:
        own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "datapipe"
        own.mkdir(parents=True, exist_ok=True)
        if os.access(own, os.W_OK | os.X_OK):
            return own
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        logger.debug("no cache folder: %s", error)
    with suppress(OSError):
        temporary = Path(tempfile.gettempdir()) / f"datapipe-{os.getuid()}"
        temporary.mkdir(mode=0o700, exist_ok=True)
        if temporary.lstat().st_uid == os.getuid():  # another user's could hold anything
            return temporary
    if own is None:
        raise DatapipeError("there is no home folder; set XDG_CACHE_HOME to one for derived files")
    return own  # it cannot be written; the error of the write names it


def cached_home(fingerprint: str) -> Path:
    """Return the folder in the cache folder for what is derived of a dataset."""
    return cache_folder() / fingerprint[:32]


def open_or_build(
    home: Path,
    name: str,
    fingerprint: str,
    content: str,
    *,
    open_at: Callable[[Path], T | None],
    build: Callable[[Path], T],
) -> T:
    """Open derived files, or build them: in `home`, or in the cache if that cannot be written.

    `name` is the folder's, relative to `home`; a warning calls its content `content`. `open_at`
    returns None where there is nothing that can be used, and `build` makes the files and returns
    them opened. Raises `DatapipeError` if neither folder can be written.
    """
    folder = home / name
    if (found := open_at(folder)) is not None:
        return found
    try:
        return build(folder)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
    cached = cached_home(fingerprint) / name
    if (found := open_at(cached)) is not None:
        return found
    logger.warning("%s cannot be written; its %s go to %s", folder.parent, content, cached)
    with writing_instead_of(folder.parent, cached.parent):
        return build(cached)


@contextmanager
def writing_instead_of(home: Path, folder: Path) -> Iterator[None]:
    """Raise a `DatapipeError` that names both folders for any `OSError` inside."""
    try:
        yield
    except OSError as error:
        raise DatapipeError(
            f"{home} cannot be written, nor can {folder} instead ({error.strerror or error}); set "
            "XDG_CACHE_HOME to a writable folder with free space, or open the dataset once with "
            "these options where its own folder is writable"
        ) from error


@contextmanager
def new_folder(
    folder: Path, is_current: Callable[[], bool], *, within: Path | None = None
) -> Iterator[Path]:
    """Make a folder that appears under its name, whole, when the block ends without an error.

    Several processes may do this at once. An older or damaged folder of that name is removed,
    unless `is_current`: then another process was quicker. It is made `within` a folder of the same
    disk.
    """
    within = within or folder.parent
    within.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=within))
    try:
        yield temporary
        temporary.chmod(0o755)
        for attempt in range(4):
            try:
                temporary.rename(folder)
                return
            except OSError:
                if attempt == 3:
                    raise
                if is_current():
                    return
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_described(
    folder: Path, about: Mapping[str, Any], kinds: Mapping[str, Kind], remade: str
) -> dict[str, Any] | None:
    """Return the arrays of a folder by name; None if they are damaged, and it is removed then.

    `about` has their `checksums_crc32`, from `write_sums`, and `remade` says what is made again.
    """
    remedy = f"remove {folder}, and {remade} again"
    try:
        found = checked_files(folder, kinds, about["checksums_crc32"], remedy=remedy)
    except IndexMismatch as error:
        logger.warning("%s; %s again", str(error).partition(";")[0], remade)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return {name.removesuffix(".npy"): values for name, values in found.items()}


def write_summed(path: Path, body: bytes) -> None:
    """Write a file with a checksum at its end, so that one that a crash tore is not read."""
    path.parent.mkdir(parents=True, exist_ok=True)  # a process without the lock may remove it
    replace_file(path, body + crc32(body).to_bytes(4, "little"), durable=False)


def read_summed(path: Path) -> bytes | None:
    """Return what `write_summed` wrote; None if it is missing, torn or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    body, total = content[:-4], content[-4:]
    if len(total) < 4 or crc32(body) != int.from_bytes(total, "little"):
        logger.warning("%s is damaged; deriving its content again", path)
        return None
    return body


def write_about(path: Path, about: dict[str, Any], *, compared: Iterable[str] = ()) -> None:
    """Write the description of a folder into it; `about` has a `version`.

    Checksums of the files `compared` are compared whenever it is read; of all others the size is.
    """
    sizes = {file.name: file.stat().st_size for file in sorted(path.parent.iterdir())}
    sums = {name: prefix_sums(path.with_name(name), [sizes[name]])[0] for name in compared}
    sealed = seal({**about, "sizes": sizes, "crc32_of": sums}, indent=1)
    path.write_text(sealed, encoding="utf-8")


def read_about(path: Path, version: int, **facts: Any) -> dict[str, Any] | None:
    """Return the description that `write_about` wrote.

    None if it is missing, torn, of another version or of other `facts`, or if a file is not the one
    described.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        about = unseal(content)
        if about["version"] != version or not facts.items() <= about.items():
            return None
        for name, size in about["sizes"].items():
            if path.with_name(name).stat().st_size != size:
                raise ValueError(f"{name} does not have the {size:,} bytes that were written")
        for name, expected in about["crc32_of"].items():
            if prefix_sums(path.with_name(name), [about["sizes"][name]]) != [expected]:
                raise ValueError(f"{name} is not what was written")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged or of an older version (%s)", path, error)
        return None
    return about
