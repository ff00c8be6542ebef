"""Raw data that YAML states: contents of files by their names.

`{0..9}` in a name stands for ten names; a name that ends in a slash is that of an empty folder. A
content is a text, a photograph by its number, a value in JSON (rows in .jsonl, .csv and .parquet),
or, as a mapping of one key:

    members   of a tar: contents by names, or names alone
    rows, chats, captions   of images, by the names that they give
    latin-1   a text in that encoding

Tags say what a text cannot: `!bytes` has a character for each byte; `!jpeg 1`, `!png`,
`!pages TIFF 3` and `!video 5` are the bytes of a photograph, of an image of three pages and of a
video of five frames, `!base64 1` those of a photograph as text, also inside of rows.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .chats import turns
from .layouts.pictures import pages
from .record_files import write


class Tagged(NamedTuple):
    """A value that a text cannot express."""

    tag: str
    value: Any


class _Loader(yaml.SafeLoader):
    pass


def _tagged(loader: yaml.Loader, tag: str, node: yaml.Node) -> Tagged:
    match node:
        case yaml.MappingNode():
            return Tagged(tag, loader.construct_mapping(node, deep=True))
        case yaml.SequenceNode():
            return Tagged(tag, loader.construct_sequence(node, deep=True))
    return Tagged(tag, loader.construct_scalar(node))


_Loader.add_multi_constructor("!", _tagged)


def read_table(name: str | Path) -> Any:
    return yaml.load((Path(__file__).parent / name).read_text("utf-8"), _Loader)


def names_of(pattern):
    """Names of a pattern such as `{00..99}.jpg`."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if not found:
        return [pattern]
    numbers = range(int(found[1]), int(found[2]) + 1)
    width = len(found[1])
    return [pattern.replace(found[0], f"{number:0{width}d}") for number in numbers]


def by_name(stated):
    """Return what is stated by patterns by each of their names."""
    return {name: value for pattern, value in stated.items() for name in names_of(pattern)}


class RawFiles(NamedTuple):
    """Writer of files out of images that it is given the makers of."""

    jpeg: Any
    encode: Any
    make_tar: Any

    def made(self, value):
        """Return a value with the bytes of its images."""
        match value:
            case Tagged("bytes", text):
                return text.encode("latin-1")
            case Tagged("jpeg", number):
                return self.jpeg(int(number))
            case Tagged("base64", number):
                return base64.b64encode(self.jpeg(int(number))).decode()
            case Tagged("png", _):
                return self.encode(kind="PNG")
            case Tagged("pages", text):
                kind, count = text.split()
                return pages(range(int(count)), kind)
            case Tagged("video", frames):
                from .videos import video_bytes

                return video_bytes(int(frames))
            case list():
                return [self.made(item) for item in value]
            case dict():
                return {name: self.made(item) for name, item in value.items()}
        return value

    def content(self, value):
        """Return the bytes of a file that holds no rows."""
        match value := self.made(value):
            case bytes():
                return value
            case str():
                return value.encode()
            case int():
                return self.jpeg(value)
        return json.dumps(value).encode()

    def write(self, folder, files):
        for name, value in by_name(files).items():
            if name.endswith("/"):
                (folder / name).mkdir(parents=True)
            else:
                self.write_file(folder / name, self.made(value))
        return folder

    def write_file(self, path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        match value:
            case {"latin-1": text}:
                path.write_text(text, "latin-1")
            case {"members": dict(stated)}:
                members = by_name(stated).items()
                self.make_tar(path, [(name, self.content(held)) for name, held in members])
            case {"members": str(pattern)}:
                self.make_tar(path, [(name, b"x") for name in names_of(pattern)])
            case {"rows": str(pattern)}:
                write(
                    path, [{"file_name": name, "text": "a caption"} for name in names_of(pattern)]
                )
            case {"chats": str(pattern)}:
                said = turns("<image>What?", "A cat")
                write(path, [{"image": name, "conversations": said} for name in names_of(pattern)])
            case {"captions": str(pattern)}:
                path.write_text(json.dumps(dict.fromkeys(names_of(pattern), "A cat")))
            case bytes() | str() | int():
                path.write_bytes(self.content(value))
            case _:
                write(path, value)
