"""Folders and tars as they are packed, linked or named in ways that `further/` cannot state."""

import gzip
import shutil

from .raw import Raw
from .table import TEXTS, Fate, N, layout, packed, refused
from .templates import each, images


def _pairs(raw: Raw, folder: str = "") -> None:
    raw.files({f"{folder}{n:03d}": {"jpg": n, "txt": f"text {n}"} for n in N})


@layout("images under wrong extensions")
def misnamed(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{n}.jpg", n, kind=("png", "webp", "gif", "bmp")[n % 4])
        raw.text(f"{n}.txt", f"text {n}")
    return packed(*TEXTS)


@layout("images beside the archive they came from")
def unpacked(raw: Raw) -> Fate:
    _pairs(raw, "data/")
    shutil.make_archive(str(raw.folder / "data"), "zip", raw.folder / "data")
    return packed(*TEXTS, says=("data.zip",))


@layout("a zip as RAW")
def zip_as_raw(raw: Raw) -> Fate:
    unpacked(raw)
    raw.given = raw.folder / "data.zip"
    return refused("unzip|unpack")


@layout("RAW is a link")
def linked_raw(raw: Raw) -> Fate:
    _pairs(raw)
    raw.given = raw.folder.with_name("link")
    raw.given.symlink_to(raw.folder)
    return packed(*TEXTS)


@layout("compressed tars")
def tar_gz(raw: Raw) -> Fate:
    path = raw.shard("part-0.tar", {f"{n}": {"jpg": n, "txt": f"text {n}"} for n in N})
    raw.write("part-0.tar.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    return refused("gunzip|tar -x|decompress")


@layout("file:// addresses")
def file_urls(raw: Raw) -> Fate:
    images(raw, "images/a b{n}.jpg")
    url = f"file://{raw.folder}/images/a%20b{{n}}.jpg"
    raw.write("data.jsonl", each({"image": url, "caption": "text {n}"}))
    return packed(*TEXTS)
