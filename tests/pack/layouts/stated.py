"""Layouts that `further/*.yaml` state: their files as they are on disk, and what becomes of them.

`{n}` in a text is the number of a sample, from 0 to 7, also `{2n+1}`, `{n%3}` or `{n:04d}`. Files
and samples that are the same for several numbers are there once. Tags say what a text cannot:

    !each    rows for every number, in a list; `!keys` likewise, of a mapping
    !n       a number: `!n`, `!n 2n+1`
    !cell    an image in a cell of a table, by its column: `!cell image`, `!cell mask n+100`
    !image   the bytes of an image, by their kind: `!image webp n+100`; `!base64` is their text
    !pages   the bytes of an image of several pages: `!pages tif 2n 2n+1`
    !medium  the bytes of another medium: `!medium mp4`
    !llava   turns of a conversation, by their texts; `!openai` likewise
    !json    a value as text in JSON; `!tabbed` the cells of a line
    !has     words that a text has, in their order

A layout is packed as `packed` says (samples, each a `caption`, a `chat`, turns by their roles, or
nothing; `rejects`; what a line `says`), `refused` by these patterns, or `either` of several. What
is `counted` may be refused as well.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .pictures import medium, pages, picture
from .raw import Raw
from .sources_chats import llava, openai
from .table import LAYOUTS, Fate, Has, Layout, N, Sample, captioned, chat, packed, refused

_NUMBER = re.compile(r"(?:(\d*)n)?(?:%(\d+))?\+?(\d+)?")
_PLACE = re.compile(r"\{(\d*n[%+\d]*)(?::(\w+))?\}")
_IMAGES = re.compile(r"\d*n(\+\d+)?")
"""An image of a tar, by its number."""


class _Tagged(NamedTuple):
    tag: str
    value: Any


class _Loader(yaml.SafeLoader):
    pass


def _tagged(loader: yaml.Loader, tag: str, node: yaml.Node) -> _Tagged:
    match node:
        case yaml.MappingNode():
            return _Tagged(tag, loader.construct_mapping(node, deep=True))
        case yaml.SequenceNode():
            return _Tagged(tag, loader.construct_sequence(node, deep=True))
    return _Tagged(tag, loader.construct_scalar(node))


_Loader.add_multi_constructor("!", _tagged)


def _number(text: str | int, n: int) -> int:
    found = _NUMBER.fullmatch(str(text))
    assert found, text
    factor, modulus, plus = found.groups()
    value = 0 if factor is None else int(factor or 1) * n
    return (value % int(modulus) if modulus else value) + int(plus or 0)


def _text(template: str, n: int) -> str:
    return _PLACE.sub(lambda found: format(_number(found[1], n), found[2] or ""), template)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class _Writer:
    raw: Raw

    def filled(self, template: Any, n: int = 0) -> Any:
        """Return a value of a file for a number."""
        match template:
            case str():
                return _text(template, n)
            case list():
                rows = (
                    self.filled(item, n) if _is_each(item) else [self.filled(item, n)]
                    for item in template
                )
                return [row for part in rows for row in part]
            case dict():
                return {_text(key, n): self.filled(value, n) for key, value in template.items()}
            case _Tagged("each", rows):
                return [self.filled(row, n) for n in N for row in _listed(rows)]
            case _Tagged():
                return self.made(template.tag, template.value, n)
        return template

    def made(self, tag: str, value: Any, n: int) -> Any:
        """Return what a tag stands for."""
        word, *numbers = value.split() if isinstance(value, str) and value else ("n",)
        number = _number(numbers[0], n) if numbers else n
        match tag:
            case "n":
                return _number(word, n)
            case "keys":
                return {k: v for n in N for k, v in self.filled(value, n).items()}
            case "cell":
                return self.raw.cell(number, word)
            case "image":
                return picture(number, word)
            case "base64":
                return b64encode(picture(number, word)).decode()
            case "pages":
                return pages([_number(page, n) for page in numbers], word)
            case "medium":
                return medium(word, n)
            case "llava":
                return llava(*self.filled(value, n))
            case "openai":
                return openai(*self.filled(value, n))
            case "tabbed":
                return "\t".join(self.filled(value, n))
            case "json":
                return json.dumps(self.filled(value, n))
            case "has":
                return Has(*self.filled(value, n))
        raise ValueError(f"no tag is called {tag!r}")

    def named(self, stated: Any) -> Iterator[tuple[str, Any, int]]:
        """Yield (name, content, number) of what is stated by its name, each name once."""
        if not isinstance(stated, dict):
            stated = dict.fromkeys(_listed(stated))
        done = set()
        for n in N:
            for template, content in stated.items():
                name = _text(template, n)
                if name not in done:
                    done.add(name)
                    yield name, content, n

    def write(self, stated: dict[str, Any]) -> None:
        """Write all files of a layout."""
        for name, number, n in self.named(stated.get("images", [])):
            self.raw.image(name, _number(number or "n", n))
        for name, content, n in self.named(stated.get("media", [])):
            self.raw.other(name, content and self.filled(content, n).encode())
        for name, content, n in self.named(stated.get("files", [])):
            self.file(name, self.filled(content, n))
        for name, parts, _ in self.named(stated.get("tars", [])):
            members = {stem: self.parts(part, n) for stem, part, n in self.named(parts)}
            self.raw.shard(name, members, stated.get("account", True))

    def parts(self, stated: dict[str, Any], n: int) -> dict[str, Any]:
        """Return the contents of a sample of a tar."""
        return {
            ext: _number(part, n) if _is_image(part) else self.filled(part, n)
            for ext, part in stated.items()
        }

    def file(self, name: str, content: Any) -> None:
        """Write a file of texts, lines or rows."""
        ext = name.rpartition(".")[2]
        match content, ext:
            case str(), _:
                self.raw.text(name, content)
            case bytes(), _:
                self.raw.bytes(name, content)
            case [str(), *_], _:
                self.raw.text(name, "".join(f"{line}\n" for line in content))
            case _, "csv" | "tsv":
                self.raw.csv(name, content, "\t" if ext == "tsv" else ",")
            case _, "jsonl":
                self.raw.jsonl(name, content)
            case _, "parquet":
                self.raw.parquet(name, content)
            case _:
                self.raw.json(name, content)

    def samples(self, stated: dict[str, Any]) -> Iterable[Sample]:
        """Return a sample for every number, each of them once."""
        return dict.fromkeys(self.sample(n, **stated) for n in N)

    def sample(self, n: int, images: Any = "n", **said: Any) -> Sample:
        numbers = tuple(_number(number, n) for number in _listed(images))
        match self.filled(said, n):
            case {"caption": text}:
                return captioned(numbers, text)
            case {"chat": texts, **system}:
                return chat(numbers, *texts, **system)
            case turns:
                return Sample(numbers, tuple(turns.items()))

    def fates(self, stated: dict[str, Any]) -> tuple[Fate, ...]:
        """Return the fates that are as good, of a layout or of one of them."""
        if either := stated.get("either"):
            return tuple(fate for one in either for fate in self.fates(one))
        if "refused" in stated:
            return (refused(*_listed(stated["refused"])),)
        samples = [made for sample in _listed(stated["packed"]) for made in self.samples(sample)]
        says = [said if isinstance(said, str) else tuple(said) for said in stated.get("says", [])]
        if counted := stated.get("counted"):
            whole = packed(*samples, says=((counted, len(N)), *says))
            return whole, refused(counted)
        return (packed(*samples, rejects=stated.get("rejects", 0), says=tuple(says)),)


def _is_image(part: Any) -> bool:
    return isinstance(part, str) and bool(_IMAGES.fullmatch(part))


def _is_each(item: Any) -> bool:
    return isinstance(item, _Tagged) and item.tag == "each"


def _layout(stated: dict[str, Any]) -> Layout:
    def make(raw: Raw) -> tuple[Fate, ...]:
        writer = _Writer(raw)
        writer.write(stated)
        raw.given = raw.folder / stated.get("given", "")
        return writer.fates(stated)

    return Layout(name=stated["layout"], make=make, options=stated.get("options", {}))


for path in sorted((Path(__file__).parent / "further").glob("*.yaml")):
    LAYOUTS += map(_layout, yaml.load(path.read_text("utf-8"), _Loader))
