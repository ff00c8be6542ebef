"""Small datasets, and damage done to their files at random."""

import random
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe.index.parquet import read_index
from tests.flipping import flip

WAYS = ("flip", "flips", "cut", "swap", "zero", "zero_blocks", "overwrite", "insert", "remove")
"""Ways to damage a shard. All but `remove` leave a file."""
FOREIGN = {"gnu": (tarfile.GNU_FORMAT, ""), "pax": (tarfile.PAX_FORMAT, "ü" * 60)}
"""Forms of tars, and what their names begin with."""
KINDS = ("packed", *FOREIGN)


@dataclass(frozen=True)
class Sample:
    """Sample of a dataset as it was packed."""

    shard: str
    key: str
    source: str
    spans: tuple[tuple[int, int], ...]  # of its members
    members: tuple[tuple[str, bytes], ...]  # by extension


@dataclass(kw_only=True)
class Original:
    """Dataset in a folder, and what it holds."""

    folder: Path
    files: dict[str, bytes]
    samples: list[Sample] = field(default_factory=list)

    @property
    def shards(self) -> list[str]:
        return sorted(name for name in self.files if name.endswith(".tar"))

    def restore(self, to: Path) -> Path:
        """Make a copy of the dataset."""
        shutil.rmtree(to, ignore_errors=True)
        for name, content in self.files.items():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(content)
        return to

    def is_same(self, shard: str, now: bytes) -> bool:
        """Return whether a shard is as it was, apart from what has no checksum in any tar.

        These are the records of extended headers, between their header and that of the member.
        """
        was = self.files[shard]
        if now == was or len(now) != len(was):
            return now == was
        edges = sorted(
            span for sample in self.samples if sample.shard == shard for span in sample.spans
        )
        ends = [0, *(-(-stop // 512) * 512 for _, stop in edges)]
        records = [
            range(end + 512, start - 512) for end, (start, _) in zip(ends, edges, strict=False)
        ]
        altered = [at for at in range(len(was)) if was[at] != now[at]]
        return all(any(at in some for some in records) for at in altered)

    def changed(self, folder: Path) -> set[tuple[str, str]]:
        """Return shard and key of the samples whose bytes are not what they were."""
        now = {name: read(folder / name) for name in self.shards}
        return {
            (sample.shard, sample.key)
            for sample in self.samples
            if any(now[sample.shard][a:b] != self.files[sample.shard][a:b] for a, b in sample.spans)
        }


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def original(folder: Path) -> Original:
    """Read a whole dataset of shards."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "lock" not in path.name
    }
    found = Original(folder=folder, files=files)
    for shard in datapipe.index.manifest.read_manifest(folder).shards:
        table = read_index(folder / shard.index)
        for row in table.to_pylist():
            spans = tuple(
                (offset, offset + size)
                for offset, size in zip(row["offset"], row["size"], strict=True)
            )
            members = tuple(
                (ext, files[shard.name][a:b]) for ext, (a, b) in zip(row["ext"], spans, strict=True)
            )
            found.samples.append(Sample(shard.name, row["key"], row["source"], spans, members))
    return found


def harm(path: Path, way: str, choice: random.Random) -> None:
    """Damage one file."""
    if way == "remove":
        path.unlink()
        return
    content = bytearray(path.read_bytes())
    size = len(content)
    blocks = size // 512
    if way in ("flip", "flips"):
        for _ in range(1 if way == "flip" else choice.randint(2, 6)):
            content[choice.randrange(size)] ^= 1 << choice.randrange(8)
    elif way == "cut":
        del content[choice.randrange(size) :]
    elif way == "swap":
        a, b = (512 * choice.randrange(blocks) for _ in range(2))
        content[a : a + 512], content[b : b + 512] = content[b : b + 512], content[a : a + 512]
    elif way in ("zero", "overwrite"):
        start = choice.randrange(size)
        length = min(size - start, choice.randint(1, 3000))
        written = bytes(length) if way == "zero" else choice.randbytes(length)
        content[start : start + length] = written
    elif way == "zero_blocks":
        start = choice.randrange(blocks)
        stop = min(blocks, start + choice.randint(1, 8))
        content[512 * start : 512 * stop] = bytes(512 * (stop - start))
    else:
        assert way == "insert"
        at = choice.randrange(size)
        if choice.random() < 0.5:
            content[at:at] = choice.randbytes(choice.randint(1, 2000))
        else:
            del content[at : at + choice.randint(1, 2000)]
    path.write_bytes(content)


def damaged_file(folder: Path, name: str, at: int = 1000) -> None:
    path = next(folder.glob(name))
    flip(path, min(at, path.stat().st_size // 2), 4)


@pytest.fixture(scope="session")
def originals(tmp_path_factory: Any, make_folder: Any, make_tar: Any) -> dict[str, Original]:
    """A whole dataset of each kind: "packed", or "gnu" and "pax" tars that are indexed in place."""
    found = {}
    for kind in KINDS:
        root = tmp_path_factory.mktemp(kind)
        raw, folder = make_folder(root / "raw", 12), root / kind
        if kind == "packed":
            datapipe.pack_dataset(raw, folder, shard_size="4", workers=1)
        else:
            form, prefix = FOREIGN[kind]
            files = [(f"{prefix}{path.name}", path.read_bytes()) for path in sorted(raw.iterdir())]
            for first in range(0, 12, 4):
                members = files[2 * first : 2 * first + 8]
                make_tar(folder / f"{first:03d}.tar", members, form)
            datapipe.index_shards(folder)
        datapipe.index.dataset.open_dataset(folder)
        found[kind] = original(folder)
    return found


@pytest.fixture
def whole(originals: dict[str, Original]) -> Original:
    """The packed dataset."""
    return originals["packed"]


@pytest.fixture
def harmed(whole: Original, tmp_path: Path) -> Path:
    """A copy of the packed dataset, to be damaged."""
    return whole.restore(tmp_path / "harmed")
