"""Names of the members of foreign tars, and the samples that they are grouped into.

Source: `group_by_keys` of webdataset 1.0, which takes every change of the key for the next sample
and refuses a name that comes twice in one.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from datapipe.index.images.header import is_image_name, is_stored_image
from datapipe.index.tar.headers import BLOCK, TarMember
from datapipe.text.sample_text import TEXT_EXTENSIONS

# WebDataset's rule: the key is the path up to the first dot of the file name. Hidden files have no
# key.
_NAME = re.compile(r"^((?:.*/)?[^./]+)\.([^/]+)$", re.DOTALL)

_SYSTEM_FILES = (".DS_Store", "Thumbs.db", "desktop.ini")
_REMEDY = "give every sample a name of its own"

BEFORE = 5 * BLOCK
"""Bytes before a member's data that hold its headers: its own, and an extended one of 1,536."""

# Blocks of the headers: the plain one, or an extended one with so many blocks of content before it.
_BLOCKS = (1, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Group:
    """The members of one sample."""

    key: str  # what their names begin with
    number: int  # 1, or which one of the samples of this key it is
    members: list[TarMember]  # in the order of the tar

    @property
    def name(self) -> str:
        """The key, with the number where the tar holds the key again: `key#2`."""
        return self.key if self.number == 1 else f"{self.key}#{self.number}"


@dataclass(frozen=True, slots=True)
class Grouped:
    """The samples of a tar, and the members that belong to none."""

    samples: list[Group]  # in order of their first members
    # (name, reason) of every member that no sample has, but for what is no data
    left_out: list[tuple[str, str]]


@lru_cache(256)  # each member is asked for several times in a row
def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into key and extension; None where WebDataset sees no sample in it."""
    match = _NAME.match(name.removeprefix("./"))
    return (match[1], match[2]) if match else None


def ext_of(name: str) -> str:
    """Return the extension of a member's name; "" where WebDataset sees no sample in it."""
    return (split_name(name) or ("", ""))[1]


def is_no_data(name: str) -> bool:
    """Return whether an operating system left a member there: `._0.jpg`, `__MACOSX/` of macOS."""
    folder, _, file = name.rpartition("/")
    if file.startswith("._") or file in _SYSTEM_FILES:
        return True
    return "__MACOSX" in folder and "__MACOSX" in folder.split("/")


def group_members(members: Iterable[TarMember], unread: Iterable[tuple[str, str]] = ()) -> Grouped:
    """Gather the members of a tar by key, wherever they are in the tar.

    Members of a key that come again with the same kinds of members are the next sample of that
    key, as for WebDataset. Any other member whose name the sample has already is left out, and so
    are samples with an image in `TarScanner.unread`. Files that are not data are skipped.
    """
    samples: list[Group] = []
    left_out: list[tuple[str, str]] = []
    by_key: dict[str, list[Group]] = {}
    for key, run in _runs(members, left_out):
        before = by_key.setdefault(key, [])
        parts = _repeats(run, before) or [_first_of_each(run, left_out)]
        for part in parts:
            if not before or len(parts) > 1 or _comes_again(part, before):
                group = Group(key, len(before) + 1, [member for _, member in part])
                before.append(group)
                samples.append(group)
            elif len(before) == 1 and not _extensions(before[0]) & {ext for ext, _ in part}:
                before[0].members.extend(member for _, member in part)
            else:
                reason = _why(len(before))
                left_out.extend((member.name, reason) for _, member in part)
    links = (split_name(name) for name, _ in unread if is_image_name(name))
    lost = dict(filter(None, links))
    kept = []
    # A repeated pack knows its inputs by a digest, which depends on this order.
    for group in sorted(samples, key=lambda group: group.key not in lost):
        if group.key in lost:
            reason = f"`{lost[group.key]}`, an image of its sample, cannot be read"
        elif _is_several(group):
            reason = (
                f"a key ends at the first dot of a name, so this is one sample {group.key!r} with "
                f"texts of several images; {_REMEDY}, without a dot"
            )
        else:
            kept.append(group)
            continue
        left_out.extend((member.name, reason) for member in group.members)
    return Grouped(kept, left_out)


_Part = Sequence[tuple[str, TarMember]]
"""Members with their extensions."""


def _runs(
    members: Iterable[TarMember], left_out: list[tuple[str, str]]
) -> Iterator[tuple[str, _Part]]:
    """Yield runs of members of the same key; members without a key are left out."""

    def named() -> Iterator[tuple[str, str, TarMember]]:
        for member in members:
            if is_no_data(member.name):
                continue
            if parts := split_name(member.name):
                yield *parts, member
            else:
                left_out.append((member.name, "name has no key and extension"))

    for key, run in groupby(named(), key=itemgetter(0)):
        yield key, [(ext, member) for _, ext, member in run]


def _repeats(run: _Part, before: list[Group]) -> list[_Part]:
    """Return the samples that a run holds: one, or several if it repeats as a whole; else none."""
    if len({ext for ext, _ in run}) == len(run):
        return [run]
    for name in (str, _kind):  # `a.jpg a.txt a.png a.txt` repeats as well
        parts = _cut(run, name)
        kinds = {_kinds(ext for ext, _ in part) for part in parts}
        kinds |= {_kinds(_extensions(group)) for group in before[:1]}
        if len(kinds) == 1:
            return parts
    return []


def _cut(run: _Part, name: Callable[[str], str]) -> list[_Part]:
    """Cut a run before every extension whose name the part has already."""
    parts: list[list[tuple[str, TarMember]]] = [[]]
    seen: set[str] = set()
    for ext, member in run:
        if name(ext) in seen:
            parts.append([])
            seen = set()
        seen.add(name(ext))
        parts[-1].append((ext, member))
    return list(parts)


def _is_several(group: Group) -> bool:
    """Return whether names with dots made one sample of several: two images each have a text.

    A JSON counts as a text if each text and JSON belongs to one image, and no image to the whole
    sample.
    """
    if len(group.members) < 4:
        return False
    parts = [ext.lower().rpartition(".") for ext in _extensions(group)]
    images = {prefix for prefix, _, last in parts if is_stored_image(last)}
    texts = {prefix for prefix, _, last in parts if last in TEXT_EXTENSIONS}
    records = {prefix for prefix, _, last in parts if last == "json"}
    if "" not in images and texts | records <= images:
        texts |= records
    return len(texts & images) > 1


def _first_of_each(run: _Part, left_out: list[tuple[str, str]]) -> _Part:
    kept: dict[str, TarMember] = {}
    for ext, member in run:
        if kept.setdefault(ext, member) is not member:
            reason = f"the sample has this name twice, and the first is used; {_REMEDY}"
            left_out.append((member.name, reason))
    return list(kept.items())


def _comes_again(part: _Part, before: list[Group]) -> bool:
    """Return whether a part is the next sample of a key that the tar has had before."""
    exts = {ext for ext, _ in part}
    again = _extensions(before[-1]) & exts
    return bool(again) and _kinds(exts) == _kinds(_extensions(before[0]))


def _why(samples: int) -> str:
    if samples == 1:
        held = "an earlier sample of this name with other members, so which belong together"
    else:
        held = f"{samples:,} earlier samples of this name, so to which of them it belongs"
    return f"the tar holds {held} is unclear; {_REMEDY}"


def _extensions(group: Group) -> set[str]:
    return {ext_of(member.name) for member in group.members}


def _kinds(exts: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_kind, exts))


def _kind(ext: str) -> str:
    """Return the kind of an extension: `jpg` and `png` are both images, of no name."""
    prefix, _, last = ext.lower().rpartition(".")
    if is_stored_image(last):
        return f"{prefix}.image"
    return "text" if ext.lower() in TEXT_EXTENSIONS else ext.lower()


def name_in_tar(before: bytes | memoryview, key: str, ext: str) -> tuple[str, str]:
    """Return key and extension of a member as webdataset takes them from its name.

    The index has `img.jpg` for a JPEG called `img`, and leaves out `./` before a name. Where no
    header names the member, as with hard links, the names are those of the index, `key` and `ext`.
    `before` are the last bytes before the data of the member, up to `BEFORE`.
    """
    # A full name field may be the beginning of a name that an extended header has whole.
    is_full = bytes(before[99 - BLOCK : 100 - BLOCK]) > b"\0"
    for blocks in reversed(_BLOCKS) if is_full else _BLOCKS:
        name = _first_name(bytes(before[-blocks * BLOCK :]), blocks)
        found, of_tar = split_name(name) or ("", "")
        if found == key and of_tar in (ext, ext.rpartition(".")[0]):
            return ("./" + key if name.startswith("./") else key), of_tar.lower()
    return key, ext.lower()


def _first_name(headers: bytes, blocks: int) -> str:
    """Return the name of the member whose data follows these headers; "" if there is none."""
    try:
        with tarfile.open(fileobj=io.BytesIO(headers), mode="r:") as tar:
            member = tar.next()
    except tarfile.TarError:
        return ""
    return member.name if member and member.offset_data == blocks * BLOCK else ""
