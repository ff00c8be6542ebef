"""Raw data of a layout on disk, with an account of every image and medium in it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..record_files import write
from .pictures import medium, picture

Content = bytes | int | str | dict[str, Any]
"""Content of a file: as it is, the number of an image, a text, or an object in JSON."""

Parts = Mapping[str, Mapping[str, Content]]
"""Contents of files by their stems and extensions."""

_TEXTS = ("txt", "json", "cls", "text", "caption")


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

    def text(self, name: str, content: str) -> None:
        self.path(name).write_bytes(content.encode())

    def write(self, name: str, content: Any, schema: Any = None) -> None:
        """Write what the account leaves out: a text, bytes, or records as the extension says."""
        match content:
            case bytes():
                self.path(name).write_bytes(content)
            case str():
                self.text(name, content)
            case _ if name.endswith(".json"):
                self.text(name, json.dumps(content, ensure_ascii=False))
            case _:
                write(self.path(name), content, schema)

    def image(self, name: str, number: int, kind: str | None = None) -> None:
        """Write an image; `kind` differs from the extension if given."""
        self.write(name, picture(number, kind or name.rpartition(".")[2]))
        self.count(name, number)

    def other(self, name: str, content: bytes | None = None) -> None:
        """Write a file of another medium, which no sample can show."""
        self.write(name, medium(name.rpartition(".")[2]) if content is None else content)
        self.count(name, None)

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

    def files(self, parts: Parts) -> None:
        for stem, part in parts.items():
            for ext, content in part.items():
                if isinstance(content, int):
                    self.image(f"{stem}.{ext}", content)
                else:
                    self.write(f"{stem}.{ext}", content)

    def shard(self, name: str, parts: Parts, account: bool = True) -> Path:
        path = self.path(name)
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for stem, part in parts.items():
                for ext, content in part.items():
                    info = tarfile.TarInfo(f"{stem}.{ext}")
                    data = _encode(ext, content)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                    number = content if isinstance(content, int) else None
                    kind = ext.rpartition(".")[2].lower()
                    if account and (number is not None or kind not in _TEXTS):
                        self.held.append(Held((info.name, f"{path.name}:{stem}"), ext, number))
        return path


def _encode(ext: str, content: Content) -> bytes:
    match content:
        case int():
            return picture(content, ext.rpartition(".")[2])
        case str():
            return content.encode()
        case dict():
            return json.dumps(content, ensure_ascii=False).encode()
        case _:
            return content
