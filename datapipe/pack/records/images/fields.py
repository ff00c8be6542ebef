"""Images as fields of records hold or name them, and the columns of a table that do."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from datapipe.errors import DecodeError, MissingMember
from datapipe.index.images.field_names import FILE_FIELDS, IMAGE_FIELDS
from datapipe.index.images.formats import raw_format, stored_format
from datapipe.index.images.header import is_image_name
from datapipe.index.media import START, is_video
from datapipe.pack.input.raw_sample import Blob, InlineBlob
from datapipe.pack.records.fields.field_path import parse_list
from datapipe.pack.records.images.roots import Images, Spelled

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")

# How the signatures of JPEG, PNG, GIF and WebP begin in base64 (RFC 4648); those of Matroska, WebM
# and of MP4 with its relatives, AVIF and HEIC among them.
_BASE64_STARTS = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR")
_BASE64 = re.compile("|".join((*_BASE64_STARTS, "GkXfo", "AAAA.[2GWm]Z0eX[AB]")))
_ENCODED_STARTS = (*_BASE64_STARTS, "d", "D")  # of base64, and of `data:` URIs
_SHORTEST_BASE64 = 64
_SIZES = 100
_MARKS = (",", ";", "|")  # between the names of several files in one cell
_LONGEST_NAMES = 1 << 16
_LONGEST_PATH = 4096
_MOST_BLANKS = 6  # in a path


def image_blob(value: Any, files: Images, name: str) -> Blob | InlineBlob:
    """Return where the bytes of an image are, or the bytes themselves.

    Args:
        value: a path (relative, absolute, or a `file://` URL), a `data:` URI, the base64 of an
            image or a video, its bytes, or a struct of `bytes` and `path` as Hugging Face has.
        files: folders that relative paths start from.
        name: what a message calls an image that has no path.

    Raises:
        MissingMember: there is no image, or it has to be downloaded first.
        DecodeError: base64 is broken, or the value is of none of these kinds.
    """
    if isinstance(value, str):
        return _from_text(value, files.path, name)
    if isinstance(value, bytes | bytearray | memoryview):
        return InlineBlob(bytes(value), name)
    if is_image_struct(value):
        held = value.get("bytes")
        return image_blob(value.get("path") if held is None else held, files, name)
    if value is None:
        raise MissingMember("no image is given", member=name)
    kind = type(value).__name__
    raise DecodeError(f"image is of type {kind}, neither a path nor bytes", member=name)


def named_blob(image: Spelled, files: Images, source: str) -> Blob | InlineBlob:
    """Return where the bytes of an image are that an annotation names; see `image_blob`."""
    name, path = files.locate(image)
    return _from_text(name, lambda _: path, source)


def image_list(value: Any, files: Images | None = None) -> list[Any]:
    """Return the images of a field: none (None, "" or []), one, or a list of them.

    With the `files` of its paths, a text may name several files, as `names_in` reads it.
    """
    if value is None or (isinstance(value, str) and not value):
        return []
    if files is not None and isinstance(value, str) and (names := names_in(value)) != [value]:
        return [value] if files.has(value) else names
    return list(value) if isinstance(value, list | tuple) else [value]


def names_in(text: str) -> list[str]:
    """Return the names of image files in a cell, a list or with `,`, `;` or `|`; else the cell."""
    if len(text) < _LONGEST_NAMES:
        listed = parse_list(text)
        if isinstance(listed, list) and listed and all(map(has_image_extension, listed)):
            return listed
        for mark in _MARKS:
            if mark in text:
                names = [name for part in text.split(mark) if (name := part.strip())]
                if names and all(map(is_image_name, names)):
                    return names
    return [text]


def image_name(value: Any) -> Any:
    """Return the path of an image that is packed, or None; lists give lists, others themselves."""
    if isinstance(value, list | tuple):
        return [image_name(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return None
    if isinstance(value, str) and (_is_data_uri(value) or _is_base64(value)):
        return None
    return image_name(value.get("path")) if is_image_struct(value) else value


def name_of_image(value: Any, number: int, kind: str = "image") -> str:
    """Return what a packed record says of its image `number`: the path it gave, else `image:N`."""
    name = image_name(value)
    return name if isinstance(name, str) and name else f"{kind}:{number}"


def with_names(record: Mapping[str, Any], images: Sequence[Any]) -> Mapping[str, Any]:
    """Return the record with names in place of the images that stand in it as bytes or base64."""
    names = {
        id(image): name
        for number, image in enumerate(images)
        if (name := name_of_image(image, number)) != image
    }

    def named(value: Any) -> Any:
        if id(value) in names:
            return names[id(value)]
        if isinstance(value, list):
            return [named(item) for item in value]
        if isinstance(value, Mapping) and not is_image_struct(value):
            return {name: named(item) for name, item in value.items()}
        return value

    return {name: named(value) for name, value in record.items()} if names else record


def is_image_struct(value: Any) -> bool:
    """Return whether a value is a struct of `bytes` and `path`, as `datasets` has images."""
    return isinstance(value, Mapping) and bool(value) and value.keys() <= {"bytes", "path"}


def is_image(value: Any) -> bool:
    """Return whether a value holds an image: bytes, base64, or a struct of these or of its path."""
    if isinstance(value, str):
        is_encoded = may_be_encoded(value) and _is_base64(value)
        return is_encoded or value[:11].lower() == "data:image/"
    if isinstance(value, bytes | bytearray | memoryview):
        start = bytes(value[:START])
        return bool(stored_format(start)) or raw_format(start) is not None
    if is_image_struct(value):
        held = value.get("bytes")
        return has_image_extension(value.get("path")) if held is None else is_image(held)
    return False


def may_be_encoded(text: str) -> bool:
    """Return whether a text begins as images in base64 and their `data:` URIs do; false is sure."""
    return text.startswith(_ENCODED_STARTS)


def _from_text(text: str, path: Callable[[str], str], name: str) -> Blob | InlineBlob:
    if not text:
        raise MissingMember("no image is given", member=name)
    if _is_data_uri(text):
        head, comma, data = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise DecodeError("data: URI is not base64", member=name)
        return InlineBlob(_decode(data, name), name)
    if _is_base64(text):
        return InlineBlob(_decode(text, name), name)
    if _URL.match(text):
        return _from_url(text, path, name)
    return Blob(path(text), name=text)


def _from_url(text: str, path: Callable[[str], str], name: str) -> Blob:
    url = text.partition("://")
    if url[0].lower() != "file":
        raise MissingMember(f"image is a URL ({text[:200]}), {NOT_FETCHED}", member=name)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise DecodeError(f"image is no valid URL: {error}", member=name) from error
    if parts.netloc not in ("", "localhost"):
        # No file is reached on another host, so what some write is a relative path.
        return Blob(path(unquote(f"{parts.netloc}{parts.path}")), name=text)
    return Blob(unquote(parts.path), name=text)


def _is_data_uri(text: str) -> bool:
    return text[:5].lower() == "data:"


def _is_base64(text: str) -> bool:
    """Return whether a text is an image or a video in base64; a path has a dot sooner or later."""
    is_start = len(text) >= _SHORTEST_BASE64 and _BASE64.match(text) is not None
    return is_start and "." not in text[:4096]


def _decode(text: str, name: str) -> bytes:
    try:
        return binascii.a2b_base64("".join(text.split()), strict_mode=True)
    except ValueError as error:
        raise DecodeError(f"base64 of the image is broken: {error}", member=name) from error


Columns = Mapping[str, Sequence[Any]]
"""Values of the first records that are not null, by column; none where all are null."""


def columns_of_record(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the fields of a record as columns of one value, or of none where it is null."""
    return {name: [] if value is None else [value] for name, value in record.items()}


ID_NAME = re.compile(r"^(image|img|photo|picture|figure)[_-]?(id|uid|hash|key)s?$", re.IGNORECASE)
"""Names of columns of images' ids."""

NOT_FETCHED = "which packing does not fetch; download first, for example with img2dataset"
"""What to do about images that are addresses."""

_URL_NAME = re.compile(r"(^|_)(url|uri|link)s?$|url$", re.IGNORECASE)
_NUMBERED = re.compile(r"(?P<stem>.*?)[_-]?(?P<number>\d+)")  # one of several, such as `image_2`


def image_columns(columns: Columns, files: Images | None = None) -> list[str]:
    """Return the columns of images: those that hold them, else those that name files of images.

    Of several, those are taken whose own names say that they are images: `image` and not `mask`.
    With `files`, a column `image` of files that are there goes before bytes in another column.
    """
    for test in (_holds_image, _names_image, _names_files):
        if found := [name for name, values in columns.items() if test(name, values)]:
            plain = [name for name in found if says_image(name)]
            if files is not None and test is _holds_image and not plain:
                plain = [n for n in columns if says_image(n) and _is_there(columns[n], files)]
            return _in_order(plain or found)
    return []


def numbered_beside(columns: Columns, names: Sequence[str]) -> list[str]:
    """Return these columns of images with those that are numbered alike, in order.

    Numbers from 100 on are sizes, such as `image_512`.

    Examples:
        >>> numbered_beside({"image": ["0.png"], "image_2": ["1.png"]}, ["image"])
        ['image', 'image_2']
    """
    stems = {_numbered(name)[0] for name in names}
    if len(stems) != 1:
        return list(names)
    alike = {n: values for n, values in columns.items() if values and _numbered(n)[0] in stems}
    found = [n for n in image_columns(alike) if n not in names and _numbered(n)[1] < _SIZES]
    return _in_order([*names, *found])


def are_numbered(names: Iterable[str]) -> bool:
    """Return whether columns are called alike but for a number, such as `image` and `image_2`."""
    return len({_numbered(name)[0] for name in names}) < 2


def says_image(column: str) -> bool:
    """Return whether a column is called as images or their files usually are, such as `img_2`."""
    name = column.lower()
    return name in FILE_FIELDS or name in IMAGE_FIELDS or _numbered(name)[0] in IMAGE_FIELDS


def url_columns(columns: Columns) -> list[str]:
    """Return the columns of addresses that seem to be those of images."""
    return [
        name
        for name, values in columns.items()
        if any(map(is_url, values))
        and (_URL_NAME.search(name) or any(map(has_image_extension, values)))
    ]


def elsewhere(columns: Columns) -> list[str]:
    """Return the columns that name images by address or by id."""
    return [*url_columns(columns), *(n for n, v in columns.items() if v and ID_NAME.search(n))]


def _holds_image(column: str, values: Sequence[Any]) -> bool:
    value = _first(values)
    if isinstance(value, bytes) and column.lower() in IMAGE_FIELDS:
        return True
    return is_image_struct(value) or is_image(value)


def _names_image(column: str, values: Sequence[Any]) -> bool:
    if column.lower() in FILE_FIELDS:  # of any kind of file
        return _names_files(column, values)
    if not says_image(column):
        return False
    value = _first(values)
    # A column of nothing but nulls is one of texts without images; one of words is none.
    if isinstance(value, str):
        return not is_url(value) and (" " not in value or "." in value[-6:])
    return value is None or value == []


def _names_files(column: str, values: Sequence[Any]) -> bool:
    return names_files(values) and not any(map(is_url, values))


def names_files(values: Sequence[Any]) -> bool:
    """Return whether values are names of image files."""
    value = _first(values)
    return isinstance(value, str) and has_image_extension(value) and "\n" not in value


def _first(values: Sequence[Any]) -> Any:
    value = values[0] if values else None
    while isinstance(value, list) and value:
        value = value[0]
    return names_in(value)[0] if isinstance(value, str) else value


def may_be_path(text: str, *, videos: bool = False) -> bool:
    """Return whether a text may be the path of an image, and is no sentence that ends with one.

    With `videos`, it may be that of a video.
    """
    return (has_image_extension(text) or (videos and is_video(text))) and is_path(text)


def is_path(text: str) -> bool:
    """Return whether a text that ends like the name of a file is a path, and no sentence."""
    return len(text) < _LONGEST_PATH and text.count(" ") < _MOST_BLANKS and "\n" not in text


def has_image_extension(value: Any) -> bool:
    """Return whether a value is the name or the address of an image file."""
    return isinstance(value, str) and is_image_name(value.partition("?")[0])


def is_url(value: Any) -> bool:
    """Return whether a value, or the first of a list, is an address on the web."""
    if isinstance(value, list):
        return bool(value) and is_url(value[0])
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _in_order(names: list[str]) -> list[str]:
    """Return columns that are numbered alike by their numbers, others as they are."""
    return sorted(names, key=lambda name: _numbered(name)[1]) if are_numbered(names) else names


def _numbered(column: str) -> tuple[str, int]:
    """Return the name of a column without its number, and the number; 0 without one."""
    found = _NUMBERED.fullmatch(column) if column[-1:].isdigit() else None
    return (found["stem"], int(found["number"])) if found else (column, 0)


def _is_there(values: Sequence[Any], files: Images) -> bool:
    value = _first(values)
    if not isinstance(value, str) or len(value) > _LONGEST_NAMES or is_url(value):
        return False
    return files.has(value)
