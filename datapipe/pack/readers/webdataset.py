"""WebDataset tar files that someone else wrote, with any member naming."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datapipe.errors import PackError
from datapipe.index.scan import find_shards, group_members
from datapipe.index.tarscan import TarMember, TarScanner
from datapipe.pack.members import extension_of, sample_of_members
from datapipe.pack.raw import Blob, RawSample, ReadOptions, Reject, printable
from datapipe.pack.readers.img2dataset import is_img2dataset


class WebDatasetReader:
    """A folder of tar files, or one: members that share a name up to its first dot are a sample.

    The members of a sample need not stand next to each other.
    """

    name = "webdataset"
    summary = "tar shards, repacked"
    fallback = False
    takes: frozenset[str] = frozenset()

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        if raw.is_file():
            return ".tar" in raw.suffixes[-2:]
        # Compressed ones are recognised too, so that reading them can say what to do.
        found = any(raw.glob("*.tar")) or any(raw.glob("*.tar.*"))
        return found and not is_img2dataset(raw)

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        shards = _shards(raw)
        with TarScanner(shards[0]) as tar:
            samples = len(group_members(iter(tar))[0])
        total = sum(path.stat().st_size for path in shards)
        return round(samples * total / max(shards[0].stat().st_size, 1))

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        for shard in _shards(raw):
            name = shard.name if raw.is_file() else shard.relative_to(raw).as_posix()
            name = printable(name)
            with TarScanner(shard) as tar:
                groups, nameless = group_members(iter(tar))
            for key, members in groups.items():
                yield _sample(f"{name}:{key}", shard, members)
            for member in nameless:
                yield Reject(f"{name}:{member}", "name has no key and extension", "DecodeError")
            for member, reason in tar.unread:
                yield Reject(f"{name}:{member}", reason, "MissingMember")


def _shards(raw: Path) -> list[Path]:
    shards = [raw] if raw.is_file() else find_shards(raw)
    if not shards:
        raise PackError(f"{raw}: no .tar file is here or below")
    return shards


def _sample(source: str, shard: Path, members: list[TarMember]) -> RawSample:
    blobs = [Blob(shard, m.offset, m.size, m.name) for m in members]
    return sample_of_members(source, [(extension_of(blob.name), blob) for blob in blobs])


READER = WebDatasetReader()
