"""Records: images named in every way, and lines that are no records."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import PACKED, read
from .folders import broken_json
from .images import encode, picture

Fates = dict[str, str]


def make_images(root: Path) -> None:
    """The images that the records below name."""
    (root / "in" / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.jpg", "b c.jpg", "größe.jpg", "in/deep/a.jpg", "100%.jpg")):
        (root / name).write_bytes(encode("jpg", picture(seed=number)))
    (root / "page.jpg").write_bytes(b"<html></html>")
    (root / "folder.jpg").mkdir()
    (root.parent / "outside.jpg").write_bytes(encode("jpg"))


def image_values(root: Path) -> list[tuple[Any, str]]:
    """Values of a field of images, with the expected outcome of the record."""
    png = base64.b64encode(encode("png")).decode()
    words = {
        "root": str(root),
        "png": png,
        "png with a line end": f"{png[:90]}\r\n {png[90:]}",
        "png without its end": png[:-1],
        "png of 79 characters": png[:79],
        "png of 40 characters": png[:40],
        "html": base64.b64encode(b"<!DOCTYPE html><p>" + b"x" * 90).decode(),
        "x300": "x" * 300,
        "x100000": "x" * 100_000,
        "deep": "x/" * 5000,
    }

    def filled(value: Any) -> Any:
        match value:
            case str():
                return re.sub(r"\{(.*?)\}", lambda found: words[found[1]], value)
            case list():
                return [filled(item) for item in value]
            case dict():
                return {name: filled(item) for name, item in value.items()}
        return value

    return [
        (filled(value), PACKED if fate == "packed" else fate)
        for fate, values in read("values.yaml").items()
        for value in values
    ]


def _llava(value: Any) -> dict[str, Any]:
    places = "<image>" * (len(value) if isinstance(value, list) else 1)
    turns = [{"from": "human", "value": f"{places} What?"}, {"from": "gpt", "value": "That."}]
    return {"id": 1, "image": value, "conversations": turns}


def _chat(value: Any) -> dict[str, Any]:
    values = value if isinstance(value, list) else [value]
    parts: list[Any] = [{"type": "image", "image": value} for value in values]
    parts.append({"type": "text", "text": "What?"})
    return {"messages": [{"role": "user", "content": parts}]}


def _table(value: Any) -> dict[str, Any]:
    return {"image": value, "text": "words", "same id": 1}


LAYOUTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "llava": _llava,
    "chat": _chat,
    "table": _table,
}


def _values(root: Path, layout: str) -> list[tuple[Any, str]]:
    values = image_values(root)
    if layout == "chat":  # where objects and nulls mean something else
        return [(v, fate) for v, fate in values if not isinstance(v, dict) and v != ["a.jpg", None]]
    return values


def make_lines(path: Path, layout: str) -> Fates:
    """JSONL of all image values in a layout, and of broken lines between them."""
    make = LAYOUTS[layout]
    # With what its source ends in, "" for its number
    lines: list[tuple[bytes, str, str]] = [(b"\xff", "line is not UTF-8", ":")]
    for value, fate in _values(path.parent, layout):
        lines.append((json.dumps(make(value)).encode(), fate, ""))
    for name, content, fate in broken_json():
        if name in ("empty", "control"):
            continue
        if fate == "not valid JSON":
            fate = "line holds NUL bytes" if name == "nul" else "line is not "
            lines.append((content, fate, ":"))
        elif fate:
            record = {**make("a.jpg"), "odd": json.loads(content)}
            lines.append((json.dumps(record).encode(), fate, ""))
        else:
            whole = json.dumps(make("a.jpg")).encode()
            lines.append((whole[:-1] + b', "odd": ' + content + b"}", fate, ""))
    good = json.dumps(make("a.jpg"), ensure_ascii=False)
    lines += [
        (good.encode() + b"\r", PACKED, ""),
        (b"  " + good.encode() + b"\t", PACKED, ""),
        (good.encode("utf-16"), "line ", ":"),
        (good.encode("utf-16-le"), "line holds NUL bytes", ":"),
        (b"\xef\xbb\xbf" + good.encode(), "line is not JSON", ":"),
        (good.replace("jpg", "ü").encode("latin-1"), "line is not UTF-8", ":"),
        (b"\0", "line holds NUL bytes", ":"),
        (bytes(9000), "line holds NUL bytes", ":"),
        (good.encode() * 2, "line is not JSON", ":"),
        (b"\x1f\x8b", "line is not UTF-8", ":"),
        (b"version https://git-lfs.github.com/spec/v1", "line is not JSON", ":"),
        *((text, "not an object", "") for text in (b"[]", b"[{}]", b"1", b'"a"', b"null", b"NaN")),
        (b"{}", "no ", ""),
    ]
    lines.append((good.encode()[:-20], "line is not JSON", ":"))  # the last one is torn
    fates: Fates = {}
    for number, (_, fate, mark) in enumerate(lines):
        # A reject of a line is named by the line, a record by its number.
        source = f"{path.name}:{number + 1}" if mark else f"{path.name}#{number}"
        fates[source] = fate
    path.write_bytes(b"\n".join(line for line, *_ in lines))
    return fates


def make_array(path: Path, layout: str) -> Fates:
    """A JSON array of the same values."""
    make = LAYOUTS[layout]
    values = _values(path.parent, layout)
    records: list[tuple[Any, str]] = [(make(value), fate) for value, fate in values]
    records += [(value, "not an object") for value in (None, True, 1, 1.5, "a", [], [1, {}])]
    records.append(({}, "no "))
    fates = {f"{path.name}#{number}": fate for number, (_, fate) in enumerate(records)}
    texts = [
        json.dumps(record, indent=number % 3 or None) for number, (record, _) in enumerate(records)
    ]
    latin = json.dumps(make("größe.jpg"), ensure_ascii=False).encode("latin-1")
    fates[f"{path.name}#{len(records)}"] = "record is not UTF-8"
    path.write_bytes(b"\xef\xbb\xbf[" + " ,\r\n".join(texts).encode() + b"," + latin + b"]\n \n")
    return fates


def make_csv(path: Path) -> Fates:
    """Rows of all values that are text, and rows that cannot be told apart."""
    rows: list[
        tuple[bytes, str, str]
    ] = []  # a row, its fate, and whether a line or number names it
    for value, fate in image_values(path.parent):
        if isinstance(value, str) and value.isprintable() and len(value) < 50_000:
            cell = '"' + value.replace('"', '""') + '"'
            rows.append((f"{cell},words".encode(), fate, ""))
    rows += [
        (b"a.jpg", "row has 1 field where the header has 2", ":"),
        (b"a.jpg,b,c", "row has 3 fields where the header has 2", ":"),
        (b",,,,,,,", "row has 8 fields", ":"),
        (b",words", "holds no image", ""),
        (b"a.jpg,", PACKED, ""),
        (b'a.jpg,"two ""quotes"""', PACKED, ""),
        (b'a.jpg,"a, comma"', PACKED, ""),
        (b'a.jpg,"stray" quote', "row is not valid", ":"),
        (b'a.jpg,a "stray" quote', PACKED, ""),
        (b"a.jpg,a\0b", "row holds NUL bytes", ":"),
        ("a.jpg,schön".encode("latin-1"), "row is not UTF-8", ":"),
        (b"a.jpg,\xff\xfe", "row is not UTF-8", ":"),
        (b"a.jpg,\xef\xbb\xbfwords", PACKED, ""),
        (b"a.jpg\twords", "row has 1 field", ":"),
        (b"a.jpg;words", "row has 1 field", ":"),
        (b"a.jpg," + b"x" * 200_000, PACKED, ""),
        ("a.jpg,\u2028\u0085\x0b\x0c\x1c".encode(), PACKED, ""),
        *((f"a.jpg,row {number}".encode(), PACKED, "") for number in range(60)),
        (b'a.jpg,"a quote that stays open', "row is not valid", ":"),
    ]
    fates: Fates = {}
    for number, (_, fate, mark) in enumerate(rows):
        fates[f"{path.name}:{number + 2}" if mark else f"{path.name}#{number}"] = fate
    path.write_bytes(b"\r\n".join((b"image,text", *(row for row, *_ in rows))))
    return fates
