"""Raw data of a layout on disk, with an account of every image and medium in it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..record_files import as_lines, write_csv
from .pictures import medium, picture

Content = bytes | int | str | dict[str, Any]
"""Content of a file: as it is, the number of an image, a text, or an object in JSON."""

Parts = Mapping[str, Mapping[str, Content]]
"""Contents of files by their stems and extensions."""


class Held(NamedTuple):
    """One image or other medium in the raw data.

    Attributes:
        names: each is enough to name it in a line of the report or of the rejects.
        group: a word that tells of all of its kind, in a line with their number.
        number: of the image; None for other media.
    """

    names: tuple[str, ...]
    group: str
    number: int | None = None


@dataclass(kw_only=True)
class Raw:
    """Folder that a layout is written into.

    Attributes:
        folder: where.
        held: what is in it.
        given: what is given to `pack_dataset`, the folder by default.
        cwd: working folder of the pack, if it matters.
    """

    folder: Path
    held: list[Held] = field(default_factory=list)
    given: str | Path = ""
    cwd: Path | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.given = self.folder

    def path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def bytes(self, name: str, content: bytes) -> Path:
        """Write a file that the account leaves to the layout."""
        path = self.path(name)
        path.write_bytes(content)
        return path

    def text(self, name: str, content: str) -> Path:
        return self.bytes(name, content.encode())

    def image(self, name: str, number: int, kind: str | None = None) -> str:
        """Write an image and return its name; `kind` differs from the extension if given."""
        self.bytes(name, picture(number, kind or name.rpartition(".")[2].lower()))
        self.count(name, number)
        return name

    def other(self, name: str, content: bytes | None = None) -> str:
        """Write a file of another medium, which no sample can show."""
        ext = name.rpartition(".")[2]
        self.bytes(name, medium(ext) if content is None else content)
        self.count(name, None)
        return name

    def count(self, name: str, number: int | None) -> None:
        """Take a file into the account."""
        base = name.rpartition("/")[2]
        self.held.append(Held((name, base), base.rpartition(".")[2], number))

    def cell(self, number: int, column: str) -> dict[str, Any]:
        """Return an image as Hugging Face keeps it in a cell of a table."""
        return {"bytes": self.inside(number, column), "path": f"{column}-{number}.png"}

    def inside(self, number: int, column: str) -> bytes:
        """Return the bytes of an image inside a record."""
        self.held.append(Held((), column, number))
        return picture(number, "png")

    def json(self, name: str, value: Any) -> Path:
        return self.text(name, json.dumps(value, ensure_ascii=False))

    def jsonl(self, name: str, rows: Iterable[Any]) -> Path:
        return self.text(name, as_lines(rows))

    def csv(self, name: str, rows: Sequence[Mapping[str, Any]], mark: str = ",") -> Path:
        path = self.path(name)
        write_csv(path, rows, mark, encoding="utf-8")
        return path

    def parquet(self, name: str, rows: list[dict[str, Any]], schema: Any = None) -> Path:
        path = self.path(name)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        return path

    def files(self, parts: Parts) -> None:
        for name, content in _names(parts):
            if isinstance(content, int):
                self.image(name, content)
            else:
                self.bytes(name, _encode(name, content))

    def shard(self, name: str, parts: Parts, account: bool = True) -> Path:
        return self.tar(name, _names(parts), account)

    def tar(self, name: str, members: Iterable[tuple[str, Content]], account: bool = True) -> Path:
        path = self.path(name)
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for member, content in members:
                is_image = isinstance(content, int)
                kind = member.rpartition(".")[2].lower()
                data = _encode(member, content)
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                base = member.rpartition("/")[2]
                key = member[: len(member) - len(base)] + base.partition(".")[0]
                if account and (is_image or kind not in ("txt", "json", "cls", "text", "caption")):
                    names = (member, f"{path.name}:{key}")
                    ext = base.partition(".")[2]
                    number = content if isinstance(content, int) else None
                    self.held.append(Held(names, ext, number))
        return path


def _names(parts: Parts) -> Iterable[tuple[str, Content]]:
    return ((f"{stem}.{ext}", part[ext]) for stem, part in parts.items() for ext in part)


def _encode(name: str, content: Content) -> bytes:
    match content:
        case int():
            return picture(content, name.rpartition(".")[2].lower())
        case str():
            return content.encode()
        case dict():
            return json.dumps(content, ensure_ascii=False).encode()
        case _:
            return content
