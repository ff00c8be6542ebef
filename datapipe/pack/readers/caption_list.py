r"""Lists of captions as text: a line names an image and gives one of its captions.

1000268201_693b08cb0e.jpg#0<TAB>A child in a pink dress .     Flickr8k.token.txt
image,caption                                                 Flickr8k on Kaggle: captions.txt
image_name| comment_number| comment                           Flickr30k on Kaggle: results.csv
0001.jpg<TAB>A dog                                            without a header
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from datapipe.index.images.header import is_image_name
from datapipe.pack.input.disk_join import Entry, disk_join
from datapipe.pack.input.file_starts import start_of
from datapipe.pack.input.raw_sample import ReadOptions, Reject, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.images.roots import PROBED, Spelled, spelled
from datapipe.pack.records.locate import list_files
from datapipe.pack.records.reader import Captioned, CaptionReader
from datapipe.pack.records.streams.text_file import open_text

_NUMBERED = re.compile(r"([^\t]+\.\w{3,4}(?:\.\d+)?)#\d+[\t ]+(.*)")
_TABLES = ("csv", "tsv")
_DELIMITERS = ("\t", "|", ",", ";")
_QUOTING = (",", ";")
_IMAGE = frozenset(
    {"image", "image_name", "imagename", "img", "file_name", "filename", "file", "filepath"}
    | {"image_path", "image_file", "image_id", "path"}
)
_CAPTION = frozenset(
    {"caption", "captions", "comment", "text", "sentence", "description", "title", "raw"}
)
_NUMBER = frozenset(
    {"comment_number", "caption_number", "number", "caption_id", "comment_id", "id", "index", ""}
)
_START = 1 << 16
_LINES = 20
_LONGEST = 20  # lines that one quoted caption may take


def names_image(name: str) -> bool:
    """Return whether a text ends as the names of image files do."""
    return is_image_name(name.strip())


@dataclass(frozen=True)
class Layout:
    """Layout of the lines of a list."""

    delimiter: str = ""  # between fields; "" for `name.jpg#0 caption`
    header: bool = False  # whether the first line names the columns
    columns: int = 2  # number of fields
    # `image`, `caption`: indices of these fields
    image: int = 0
    caption: int = 1

    def fields(self, text: str) -> list[str]:
        """Return the fields of a line; surplus ones belong to the last, a caption."""
        if not self.delimiter:
            match = _NUMBERED.fullmatch(text)
            return list(match.groups()) if match else [text]
        if self.delimiter in _QUOTING and '"' in text and (fields := self._quoted(text)):
            surplus = self.delimiter.join(fields[self.columns - 1 :])
            return [*fields[: self.columns - 1], surplus] if surplus else fields
        return text.split(self.delimiter, self.columns - 1)

    def _quoted(self, text: str) -> list[str] | None:
        """Return the fields of CSV; None if a quotation mark opens none, or is not closed."""
        lines = text.splitlines(keepends=True)
        with suppress(csv.Error):
            return next(csv.reader(lines, delimiter=self.delimiter, strict=True))
        return None

    def share_of_images(self, lines: list[str]) -> float:
        """Return the share of lines that name an image."""
        fields = map(self.fields, lines)
        named = sum(len(f) == self.columns and names_image(f[self.image]) for f in fields)
        return named / len(lines) if lines else 0.0

    def parse(self, number: int, text: str) -> Entry:
        """Return the image of a line with its caption, or what is wrong with the line."""
        fields = self.fields(text)
        if len(fields) != self.columns:
            parts = f"line has {len(fields)} of {self.columns} fields"
            return _broken(number, parts if self.delimiter else "line is no `image#number caption`")
        image, caption = fields[self.image].strip(), fields[self.caption].strip()
        if not image or not caption:
            return _broken(number, f"line has no {'caption' if image else 'image'}")
        if "\0" in text:
            return _broken(number, "line holds NUL bytes")
        return Entry(number, image, caption)

    def read(self, file: BinaryIO) -> Iterator[Entry]:
        """Yield the lines of a list, but blank ones and the header; numbers count from 1."""
        lines = enumerate(file, 1)
        waiting: deque[tuple[int, bytes]] = deque()

        def following() -> tuple[int, bytes]:
            return waiting.popleft() if waiting else next(lines, (0, b""))

        skips_header = self.header
        while True:
            number, data = following()
            if not number:
                return
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
            if not data.strip():
                continue
            if skips_header:
                skips_header = False
                continue
            whole = data
            more: list[tuple[int, bytes]] = []
            while self._ends_in_quotes(whole) and len(more) < _LONGEST and (line := following())[0]:
                more.append(line)
                whole += line[1]
            if more and self._quoted(whole.decode(errors="replace")) is None:
                waiting.extendleft(reversed(more))  # no quotation mark closes it
                whole = data
            try:
                yield self.parse(number, whole.decode().rstrip("\r\n"))
            except UnicodeDecodeError as error:
                yield _broken(number, f"line is not UTF-8 at byte {error.start}")

    def _ends_in_quotes(self, data: bytes) -> bool:
        """Return whether a line ends inside a field that began with a quotation mark."""
        if self.delimiter not in _QUOTING or b'"' not in data:
            return False
        text = data.decode(errors="replace")
        return self._quoted(text) is None and self._quoted(text + '"') is not None


def _broken(number: int, reason: str) -> Entry:
    return Entry(number, None, None, reason, "DecodeError")


def layout_of(path: Path) -> Layout | None:
    """Return how captions are written in a file; None for no list, and for the table reader's."""
    start = start_of(path, _START)
    if b"\0" in start:
        return None
    text = start.decode("utf-8-sig", "replace")
    lines = [line for line in text.splitlines()[: _LINES + 1] if line.strip()]
    if len(start) == _START and len(lines) > 1:
        lines.pop()
    if not lines:
        return None
    if all(map(_NUMBERED.fullmatch, lines)):
        return Layout()
    layout = _with_header(lines)
    if layout and path.suffix[1:].lower() in _TABLES and layout.delimiter != "|":
        return None
    return layout or _without_header(lines)


def _with_header(lines: list[str]) -> Layout | None:
    for delimiter in _DELIMITERS:
        names = [name.strip(" \"'").lower() for name in lines[0].split(delimiter)]
        images = [index for index, name in enumerate(names) if name in _IMAGE]
        captions = [index for index, name in enumerate(names) if name in _CAPTION]
        if len(images) == len(captions) == 1 and not {*names} - _IMAGE - _CAPTION - _NUMBER:
            layout = Layout(delimiter, True, len(names), images[0], captions[0])
            if layout.share_of_images(lines[1:]) >= 0.5:
                return layout
    return None


def _without_header(lines: list[str]) -> Layout | None:
    for delimiter in _DELIMITERS:
        layout = Layout(delimiter)
        once = delimiter not in _QUOTING
        if once and any(line.count(delimiter) != 1 for line in lines):
            continue
        if not names_image(layout.fields(lines[0])[0]):
            continue  # the first line names columns
        captions = [" ".join(layout.fields(line)[1:]).strip() for line in lines]
        # Numbers are labels, JSON is boxes and what is read in them; commas also part short labels.
        texts = sum(
            any(map(str.isalpha, caption))
            and not caption.startswith(("[", "{"))
            and (once or " " in caption or not caption.isascii())
            for caption in captions
        )
        if layout.share_of_images(lines) >= 0.75 and texts > 0.5 * len(lines):
            return layout
    return None


_PROBES = 100
_FIRST = 5000
_COPIES = ".lemma."  # of Flickr8k.token.txt, with its words in their ground form


class CaptionListReader(CaptionReader):
    """`name.jpg#0<TAB>caption`, `image,caption` or `image_name| comment_number| comment`.

    The lines of an image need not follow each other; images come in the order of their first.
    """

    name = "captionlist"
    summary = "captions as lines of text: Flickr8k.token.txt, captions.txt, Flickr30k's results.csv"
    what = "captions as lines"
    absent = (
        "no text file here lists captions of images, as `name.jpg#0<TAB>caption` or under a header "
        "such as `image,caption`; give the list itself"
    )
    marks = ("\n", "")

    def find(self, survey: Survey, options: ReadOptions) -> list[Path]:
        with suppress(OSError):
            for level in list_files(survey, options.include):
                found = [path for path in level[:_PROBES] if survey.look(layout_of, path)]
                names = {path.name for path in found}
                originals = [(path, path.name.replace(_COPIES, ".")) for path in found]
                if found := [p for p, name in originals if name == p.name or name not in names]:
                    return found
        return []

    def first_images(self, path: Path) -> Sequence[Spelled]:
        names = (line.id for line in islice(_lines(path), _FIRST) if line.id)
        return list(map(spelled, islice(dict.fromkeys(names), PROBED)))

    def entries(self, path: Path, options: ReadOptions) -> Iterator[Captioned | Reject]:
        with disk_join(options.scratch, "line") as (join,):
            join.load(_lines(path))
            for image in join.ids():
                captions = [caption for _, caption in join.of(image)]
                source = f"{printable(path.name)}#{printable(image)}"
                yield Captioned(source, spelled(image), captions, {"image": image})
            yield from join.rejects(lambda number: f"{printable(path.name)}:{number}")


def _lines(path: Path) -> Iterator[Entry]:
    layout = layout_of(path)
    assert layout is not None
    with open_text(path) as file:
        yield from layout.read(file)


READER = CaptionListReader()
