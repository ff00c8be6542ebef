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

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..raw_files import read_table
from .raw import Raw
from .table import LAYOUTS, Fate, Layout, N, Sample, captioned, chat, packed, refused
from .templates import filled, filled_text, listed, number_of

_IMAGES = re.compile(r"\d*n(\+\d+)?")
"""An image of a tar, by its number."""


@dataclass(frozen=True)
class _Writer:
    raw: Raw

    def named(self, stated: Any) -> Iterator[tuple[str, Any, int]]:
        """Yield (name, content, number) of what is stated by its name, each name once."""
        if not isinstance(stated, dict):
            stated = dict.fromkeys(listed(stated))
        done = set()
        for n in N:
            for template, content in stated.items():
                name = filled_text(template, n)
                if name not in done:
                    done.add(name)
                    yield name, content, n

    def write(self, stated: dict[str, Any]) -> None:
        """Write all files of a layout."""
        for name, number, n in self.named(stated.get("images", [])):
            self.raw.image(name, number_of(number or "n", n))
        for name, content, n in self.named(stated.get("media", [])):
            self.raw.other(name, content and filled(content, n, self.raw).encode())
        for name, content, n in self.named(stated.get("files", [])):
            self.file(name, filled(content, n, self.raw))
        for name, parts, _ in self.named(stated.get("tars", [])):
            members = {stem: self.parts(part, n) for stem, part, n in self.named(parts)}
            self.raw.shard(name, members, stated.get("account", True))
        for name, target, n in self.named(stated.get("links", {})):
            there = filled_text(target, n).replace("RAW", str(self.raw.folder))
            self.raw.path(name).symlink_to(there)

    def parts(self, stated: dict[str, Any], n: int) -> dict[str, Any]:
        """Return the contents of a sample of a tar."""
        return {
            ext: number_of(part, n) if _is_image(part) else filled(part, n, self.raw)
            for ext, part in stated.items()
        }

    def file(self, name: str, content: Any) -> None:
        """Write a file of texts, lines or rows."""
        match content:
            case [str(), *_]:
                content = "".join(f"{line}\n" for line in content)
        self.raw.write(name, content)

    def samples(self, stated: dict[str, Any]) -> Iterable[Sample]:
        """Return a sample for every number, each of them once."""
        return dict.fromkeys(self.sample(n, **stated) for n in N)

    def sample(self, n: int, images: Any = "n", **said: Any) -> Sample:
        numbers = tuple(number_of(number, n) for number in listed(images))
        match filled(said, n):
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
            return (refused(*listed(stated["refused"])),)
        samples = [made for sample in listed(stated["packed"]) for made in self.samples(sample)]
        says = [said if isinstance(said, str) else tuple(said) for said in stated.get("says", [])]
        if counted := stated.get("counted"):
            whole = packed(*samples, says=((counted, len(N)), *says))
            return whole, refused(counted)
        return (packed(*samples, rejects=stated.get("rejects", 0), says=tuple(says)),)


def _is_image(part: Any) -> bool:
    return isinstance(part, str) and bool(_IMAGES.fullmatch(part))


_KEYS = frozenset(
    ["layout", "options", "given", "cwd", "account", "images", "media", "files", "tars", "links"]
) | frozenset(["packed", "refused", "either", "says", "counted", "rejects"])


def _layout(stated: dict[str, Any]) -> Layout:
    assert stated.keys() <= _KEYS, stated["layout"]

    def make(raw: Raw) -> tuple[Fate, ...]:
        writer = _Writer(raw)
        writer.write(stated)
        raw.given = raw.folder / stated.get("given", "")
        if "cwd" in stated:
            raw.cwd, raw.given = raw.folder / stated["cwd"], stated["given"]
        return writer.fates(stated)

    return Layout(name=stated["layout"], make=make, options=stated.get("options", {}))


for path in sorted((Path(__file__).parent / "further").glob("*.yaml")):
    LAYOUTS += map(_layout, read_table(path))
