"""Folders: odd names, sidecars that cannot be read, and things that are no files."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from . import PACKED, odd_names, read
from .images import encode, picture

Fates = dict[str, str]


def make_folder(raw: Path) -> Fates:
    """A folder of all of these; what should become of each by its source."""
    fates: Fates = {}
    makers: tuple[Callable[[Path, Fates], None], ...] = (_names, _captions, _records, _no_files)
    for make in makers:
        folder = raw / make.__name__.strip("_")
        folder.mkdir(parents=True)
        own: Fates = {}
        make(folder, own)
        fates |= {f"{folder.name}/{name}": fate for name, fate in own.items()}
    return fates


def _names(folder: Path, fates: Fates) -> None:
    stems = [*odd_names("stems"), "0" * 99, "x" * 251, "é" * 125]
    for number, stem in enumerate(stems):
        name = f"{stem}.jpg"
        (folder / name).write_bytes(encode("jpg", picture(seed=number)))
        if not name.startswith("."):
            fates[name] = PACKED
    for number, stem in enumerate((b"\xff", b"a\x80b", b"caf\xe9", b"\xc3", b"\xed\xa0\x80")):
        name = os.fsdecode(stem + b".jpg")
        (folder / name).write_bytes(encode("jpg", picture(seed=number)))
        fates[name.encode("utf-8", "backslashreplace").decode()] = PACKED
    for extension in ("JPG", "Jpeg", "jpe", "jfif", "PnG", "TIFF"):
        (folder / f"upper.{extension}").write_bytes(encode("png"))
        fates[f"upper.{extension}"] = PACKED
    (folder / "README").write_bytes(b"no input")
    (folder / os.fsdecode(b"\xfe.txt")).write_bytes(b"words")
    fates[r"\udcfe.txt"] = "no image has the same stem"
    for name in ("a.jpg.part", "a.jpg~", "a.", "a.jpg "):
        (folder / name).write_bytes(encode("jpg"))
        fates[name] = "neither an image nor the sidecar of one"


def _with_sidecar(folder: Path, fates: Fates, name: str, content: bytes, fate: str) -> None:
    stem = Path(name).stem
    (folder / f"{stem}.jpg").write_bytes(encode("jpg"))
    (folder / name).write_bytes(content)
    fates[f"{stem}.jpg"] = fate


def _captions(folder: Path, fates: Fates) -> None:
    words = "Ein schöner Tag"
    contents = {
        "empty": (b"", PACKED),
        "blank": (b" \r\n\t", PACKED),
        "bom": (b"\xef\xbb\xbf" + words.encode(), PACKED),
        "bom-inside": (b"a\xef\xbb\xbfb", PACKED),
        "nul": (b"a\0b", PACKED),
        "nuls": (bytes(100), PACKED),
        "controls": (bytes(range(32)), PACKED),
        "long": (words.encode() * 50_000, PACKED),
        "utf-16": (words.encode("utf-16"), "text is not UTF-8 at byte 0"),
        "utf-16-be": (b"\xfe\xff" + words.encode("utf-16-be"), "text is not UTF-8 at byte 0"),
        "utf-32": (words.encode("utf-32"), "text is not UTF-8 at byte 0"),
        "latin-1": (words.encode("latin-1"), "text is not UTF-8 at byte 7"),
        "cp1252": (b"a \x93quoted\x94 word", "text is not UTF-8 at byte 2"),
        "cut": (words.encode()[:8], "text is not UTF-8 at byte 7"),
        "surrogate": (b"\xed\xa0\x80", "text is not UTF-8"),
        "overlong": (b"\xc0\xaf", "text is not UTF-8"),
        "image": (encode("png"), "text is not UTF-8"),
    }
    for name, (content, fate) in contents.items():
        _with_sidecar(folder, fates, f"{name}.txt", content, fate)
        _with_sidecar(folder, fates, f"{name}-c.caption", content, fate)
    (folder / "alone.txt").write_bytes(b"alone")
    fates["alone.txt"] = "no image has the same stem"
    (folder / "twice.JPG").write_bytes(encode("jpg"))
    for name in ("twice.txt", "twice.TXT", "twice.caption"):
        (folder / name).write_bytes(b"words")
    fates["twice.JPG"] = PACKED
    fates["twice.txt"] = "another text of this kind"
    (folder / "linked.jpg").write_bytes(encode("jpg"))
    (folder / "linked.txt").symlink_to("nowhere")
    fates["linked.jpg"] = "file is missing"
    (folder / "piped.jpg").write_bytes(encode("jpg"))
    os.mkfifo(folder / "piped.txt")
    fates["piped.jpg"] = "not a regular file"


def broken_json() -> Iterator[tuple[str, bytes, str]]:
    """Objects of JSON that are odd or broken: a name, the text, what should become of it."""
    for fate, texts in read("json.yaml").items():
        for name, text in texts.items():
            yield name, text.encode(), PACKED if fate == "packed" else fate
    deep = 100_000
    yield "latin-1", '{"caption": "ü"}'.encode("latin-1"), "not valid JSON"
    yield "deep-list", b'{"a":' + b"[" * deep + b"]" * deep + b"}", "not valid JSON"
    yield "deep-object", b'{"a":' * deep + b"1" + b"}" * deep, "not valid JSON"
    yield "nested", b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", PACKED
    yield "huge", b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"
    yield "large", b'{"a": ' + b"9" * 4000 + b"}", PACKED


def _records(folder: Path, fates: Fates) -> None:
    for name, content, fate in broken_json():
        if name in ("turns-odd", "messages-odd"):
            fate = "is not a list of turns"
        _with_sidecar(folder, fates, f"{name}.json", content, fate)
    for number, value in enumerate((None, True, 1, 1.5, "text", [], [1, {}])):
        _with_sidecar(folder, fates, f"value-{number}.json", json.dumps(value).encode(), PACKED)
    for name in ("utf-16", "utf-32", "utf-8-sig"):
        _with_sidecar(folder, fates, f"{name}.json", '{"caption": "ü"}'.encode(name), PACKED)


def _no_files(folder: Path, fates: Fates) -> None:
    os.mkfifo(folder / "pipe.jpg")
    fates["pipe.jpg"] = "not a regular file"
    (folder / "device.png").symlink_to("/dev/zero")
    fates["device.png"] = "not a regular file"
    (folder / "nowhere.jpg").symlink_to("nowhere")
    fates["nowhere.jpg"] = "file is missing"
    (folder / "itself.jpg").symlink_to("itself.jpg")
    fates["itself.jpg"] = "file cannot be opened: Too many levels of symbolic links"
    (folder / "circle").symlink_to(".")
    fates["circle"] = "leads back"
    (folder / "folder.jpg").mkdir()
    (folder / "folder.jpg" / "empty").mkdir()
    (folder / "real.jpg").write_bytes(encode("jpg"))
    (folder / "linked.jpg").symlink_to("real.jpg")
    fates["real.jpg"] = fates["linked.jpg"] = PACKED
    with (folder / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 40)
    fates["sparse.jpg"] = "do not fit into a shard"
