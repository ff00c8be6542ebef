"""Archives: what they hold, whether that is unpacked beside them, and how to unpack them."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from shlex import quote

from datapipe.errors import PackError
from datapipe.index.tar.headers import DECOMPRESS
from datapipe.pack.input.raw_sample import printable

_MEMBERS = 30  # that are looked for; a compressed archive is unpacked as far as these reach
_ZIP_NAMES = 1_000_000  # no directory of more is read
_ENDING = re.compile(r"(\.tar)?\.[^.]+$")


def first_members(path: Path, most: int = _MEMBERS) -> list[tuple[str, int]]:
    """Return names and sizes of the first files in an archive; none if it cannot be read."""
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                files = (info for info in archive.filelist[:_ZIP_NAMES] if not info.is_dir())
                return [(info.filename, info.file_size) for info in islice(files, most)]
        with tarfile.open(path, "r|*") as tar:
            members = ((m.name.removeprefix("./"), m.size) for m in tar if m.isreg())
            return list(islice(members, most))
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error):
        return []


def lies_beside(path: Path) -> bool:
    """Return whether the first files of an archive are all unpacked beside it, equal in size."""
    members = first_members(path)
    if not members:
        return False
    here = path.parent
    return any(
        all(_size(f"{home}/{name}") == size for name, size in members)
        for home in (here, here / _ENDING.sub("", path.name))
    )


def holds(path: Path, names: list[str]) -> bool:
    """Return whether an archive seems to hold some of these files: by the ends of their paths."""
    ends = {name.rpartition("/")[2] for name in names}
    return any(name.rpartition("/")[2] in ends for name, _ in first_members(path, 200))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return -1


_TAR = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst|tar)$", re.IGNORECASE)
_OTHER = re.compile(r"\.(zip|7z|rar)$", re.IGNORECASE)
# Parts as `split` and the uploaders of large files name them.
_PART = re.compile(
    r"(\.(?:tar(?:\.(?:gz|bz2|xz|zst))?|tgz|zip|7z))[._-]?(?:part)?[._-]?(?:\d{1,4}|[a-z]{2})$"
)
_COMMANDS = {
    "zip": "unzip -q {name} -d {folder}",
    "7z": "7z x {name} -o{folder}",
    "rar": "mkdir -p {folder} && unrar x {name} {folder}/",
    "tar": "mkdir -p {folder} && tar -xf {name} -C {folder}",
}
_NAMED = 3


def refuse_archive(raw: Path) -> None:
    """Refuse a file that is an archive, with the command that unpacks it; a plain tar is none."""
    if raw.name.lower().endswith(".tar"):
        return
    command = unpack_command(raw)
    if command is None:
        return
    what = "is compressed" if _TAR.search(raw.name) else "is an archive"
    text = (
        f"{raw} {what}, and samples cannot be read from the middle of it; unpack it with "
        f"`{command}` and give {unpack_folder(raw)}"
    )
    tool = DECOMPRESS.get(raw.name.lower().rpartition(".")[2])
    if tool and _TAR.search(raw.name):
        plain = raw.with_name(re.sub(r"\.(tar\.\w+|t\w+)$", ".tar", raw.name, flags=re.IGNORECASE))
        text += f", or, if it is a shard of WebDataset, `{tool} {quote(str(raw))}` and give {plain}"
    raise PackError(text)


def packed_images(files: Iterable[str]) -> str:
    """Return what to do with the archives among some files, by their paths; "" without any."""
    found: dict[str, Path] = {}
    for path in map(Path, filter(is_archive, files)):
        found.setdefault(_whole(path.name), path)
    if not found:
        return ""
    paths = list(found.values())
    listed = ", ".join(printable(path.name) for path in paths[:_NAMED])
    listed += f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    command = unpack_command(paths[0])
    again = ", and likewise the others" if len(paths) > 1 else ""
    return (
        f"images are not read from inside archives: unpack {listed} first, with "
        f"`{command}`{again}, and run the same command again"
    )


def is_archive(name: str) -> bool:
    """Return whether a file's name is that of an archive, or of a part of one."""
    return any(pattern.search(_whole(name)) for pattern in (_TAR, _OTHER))


def is_part(name: str) -> bool:
    """Return whether a file's name is that of a part of a split archive, as `a.tar.gz.aa` is."""
    return _whole(name) != name


def unpack_command(path: Path) -> str | None:
    """Return the command that unpacks an archive or one of its parts, by its name; None for others.

    Examples:
        >>> unpack_command(Path("coco.zip"))
        'unzip -q coco.zip -d coco'
    """
    if not is_archive(path.name):
        return None
    folder = quote(str(unpack_folder(path)))
    if is_part(path.name):
        whole = path.with_name(_whole(path.name))
        parts = f"{quote(str(whole))}{path.name[len(whole.name)]}*"
        return f"cat {parts} > {quote(str(whole))} && {unpack_command(whole)}"
    command = _COMMANDS.get(path.name.lower().rpartition(".")[2], _COMMANDS["tar"])
    return command.format(name=quote(str(path)), folder=folder)


def unpack_folder(path: Path) -> Path:
    """Return the folder beside an archive to which `unpack_command` unpacks it."""
    return path.with_name(_OTHER.sub("", _TAR.sub("", _whole(path.name))) or "unpacked")


def _whole(name: str) -> str:
    """Return the name of the archive that a file is a part of; that of any other file as it is."""
    if _TAR.search(name) or _OTHER.search(name):  # `gz` of `.tar.gz` could name a part
        return name
    return _PART.sub(r"\1", name)
