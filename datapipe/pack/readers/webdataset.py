"""WebDataset tar files that someone else wrote, with any member naming."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from pathlib import Path
from posixpath import basename, dirname
from shlex import quote

from datapipe.errors import PackError
from datapipe.index.ignore import parse_ignore
from datapipe.index.images.header import is_image_extension
from datapipe.index.tar.grouping import Group, group_members
from datapipe.index.tar.headers import TarMember, TarScanner, check_ends
from datapipe.index.tar.listing import Tars, tars_at
from datapipe.pack.input.archives import is_part, unpack_command, unpack_folder
from datapipe.pack.input.file_kinds import is_paper, kind_of_name
from datapipe.pack.input.file_starts import are_names_alone
from datapipe.pack.input.members import member_rejects, read_members, sample_of_members, tar_members
from datapipe.pack.input.raw_sample import Input, ReadOptions, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers import img2dataset
from datapipe.report.table import counted
from datapipe.text.sample_text import TEXT_EXTENSIONS

_LOOKED_AT = 20  # texts, the longest: a file of captions is longer than each of them
_START = 1 << 16
# Begins where a word begins, so that a long word is read once and not from each of its letters.
_IMAGE = re.compile(
    rb"(?<![^\s\"'/\\,;|])[^\s\"'/\\,;|]+\.(?:jpe?g|png|webp|gif|bmp|tiff?)\b", re.IGNORECASE
)


def refuse_folder_in_tar(tar: TarScanner, groups: Sequence[Group], tars: Sequence[Path]) -> None:
    """Refuse tars in which most images lack a text that is elsewhere in the same tar.

    It may be a file that names the images, or a folder of texts beside one of images. `groups` are
    the samples of the first tar.
    """
    kinds = [(group, {_kind(member) for member in group.members}) for group in groups]
    alone = [group for group, held in kinds if "image" in held and "text" not in held]
    texts = [group for group, held in kinds if "text" in held and "image" not in held]
    with_images = sum("image" in held for _, held in kinds)
    # Where most images have a text of their own, texts alone are what they seem to be.
    if not texts or 2 * len(alone) <= with_images:
        return
    how = _named_in(tar, alone, texts) or _parallel_to(alone, texts)
    if not how:
        return
    command = unpack_command(tar.path) or f"tar -xf {quote(str(tar.path))}"
    again = ", and likewise the others," if len(tars) > 1 else ""
    folder = tar.path.parent if len(tars) > 1 else unpack_folder(tar.path)
    raise PackError(
        f"{tar.path}: the texts of this tar belong to its images by {how}, which tars do not say; "
        f"unpack it with `{command}`{again} and give {folder}"
    )


def _named_in(tar: TarScanner, alone: Iterable[Group], texts: Iterable[Group]) -> str:
    """Return the texts that name images which stand alone; "" where hardly one is named."""
    members = [m for group in alone for m in group.members if _kind(m) == "image"]
    names = {name for member in members for name in _names(member.name.encode())}
    named: set[bytes] = set()
    files = []
    candidates = [m for group in texts for m in group.members if _kind(m) == "text"]
    for member in nlargest(_LOOKED_AT, candidates, key=lambda m: m.size):
        start = tar.read(member.offset, min(member.size, _START))
        if is_paper(member.name.rpartition("/")[2]) or are_names_alone(start):
            continue
        if found := names & _names(start):
            named |= found
            files.append(printable(member.name))
    # A text may speak of one image by chance.
    return f"the names in {files[0]}" if len(named) >= min(2, len(names)) > 0 else ""


def _names(text: bytes) -> set[bytes]:
    return {name.lower() for name in _IMAGE.findall(text)}


def _parallel_to(alone: Sequence[Group], texts: Iterable[Group]) -> str:
    """Return a text whose name is that of an image in another folder, if most images have one."""
    named: dict[str, str] = {}
    for group in texts:
        named.setdefault(basename(group.key), group.key)
    pairs = ((group.key, named.get(basename(group.key), group.key)) for group in alone)
    found = [(image, text) for image, text in pairs if dirname(image) != dirname(text)]
    if 2 * len(found) <= len(alone):
        return ""
    image, text = found[0]
    return f"their names in another folder ({printable(image)} and {printable(text)})"


def _kind(member: TarMember) -> str:
    ext = member.name.rpartition(".")[2].lower()
    if is_image_extension(ext):
        return "image"
    # Parquet compresses the names in it.
    is_text = ext in TEXT_EXTENSIONS or kind_of_name(f"x.{ext}") not in ("", "parquet")
    return "text" if is_text else ""


def tars_in(survey: Survey) -> list[Path]:
    """Return the tars in a folder itself, compressed ones too: reading them says what to do.

    Parts of a split one are none: what to do with them is said where nothing else is known.
    """
    names = survey.top.files
    tars = (name for name in names if name.endswith(".tar") or ".tar." in name)
    return [survey.raw / name for name in tars if not is_part(name)]


class WebDatasetReader:
    """Reader of a folder of tar files, a list of them, or one.

    Members that share a name up to its first dot are a sample; they need not stand next to each
    other. A key that comes again with the same kinds of members is the next sample.
    """

    name = "webdataset"
    summary = "tar shards, repacked"
    takes: frozenset[str] = frozenset({"map", "ignore", "wait"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        if survey.is_file:
            return ".tar" in survey.raw.suffixes[-2:]
        if survey.is_list:
            return True
        return bool(tars_in(survey)) and not img2dataset.READER.recognises(survey, options)

    def open(self, survey: Survey, options: ReadOptions) -> Tars:
        raw = survey.raw
        if survey.is_file:  # whatever it is called
            return Tars(name=str(raw), folder=raw.parent, shards=(raw,), listed=True)
        tars = tars_at(raw)
        if not tars.shards:
            raise PackError(f"{raw}: no .tar file is here or below")
        return tars

    def estimate(self, source: Tars, options: ReadOptions) -> int | None:
        shards = source.shards
        options.wait(shards[0])
        with TarScanner(shards[0]) as tar:
            samples = len(group_members(tar).samples)
        total = sum(path.stat().st_size for path in shards)
        return round(samples * total / max(shards[0].stat().st_size, 1))

    def read(self, source: Tars, options: ReadOptions) -> Iterator[Input]:
        check_ends(source.shards)
        again: list[str] = []
        ignore = parse_ignore(options.ignore)
        judged = False
        for shard, name in zip(source.shards, map(printable, source.names()), strict=True):
            options.wait(shard)
            with TarScanner(shard) as tar:
                members = read_members(tar, ignore, options.notes, name)
                groups = group_members(members, tar.unread)
                if groups.samples and not judged:
                    refuse_folder_in_tar(tar, groups.samples, source.shards)
                    judged = True
            for group in groups.samples:
                label = f"{name}:{group.name}"
                if group.number > 1:
                    again.append(label)
                yield sample_of_members(
                    label, tar_members(shard, group), options.notes, videos=options.videos
                )
            yield from member_rejects(name, groups, tar)
        if again:
            options.notes.decide(
                f"{counted(len(again), 'sample')} with the key of an earlier one in the same tar, "
                "for example "
                f"{again[0]}; each is a sample of its own, as for WebDataset"
            )


READER = WebDatasetReader()
