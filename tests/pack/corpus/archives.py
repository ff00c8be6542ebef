"""Tar files: members with odd names, members that are no files, and archives that are damaged."""

import io
import tarfile
from pathlib import Path

from . import PACKED, odd_names
from .images import encode, picture

Fates = dict[str, str]

_USTAR, _GNU, _PAX = tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT


def add(tar: tarfile.TarFile, name: str, content: bytes, **header: object) -> None:
    """Add a regular file."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in header.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(content))


def make_tars(raw: Path) -> Fates:
    """A folder of tars; what should become of each sample by its source."""
    raw.mkdir()
    fates: Fates = {}
    for format, kind in ((_USTAR, "ustar"), (_GNU, "gnu"), (_PAX, "pax")):
        path = raw / f"{kind}.tar"
        with tarfile.open(path, "w", format=format, errors="surrogateescape") as tar:
            own = _fill(tar, kind)
        fates |= {f"{path.name}:{name}": fate for name, fate in own.items()}
    (raw / "empty.tar").write_bytes(bytes(10_240))
    return fates


def _fill(tar: tarfile.TarFile, kind: str) -> Fates:
    fates: Fates = {}
    keys = [*odd_names("keys"), "x" * 90, "deep/" * 18 + "a", "é" * 40]
    if kind != "ustar":
        keys += ["y" * 251, "long/" * 60 + "a", "ö" * 120, "z" * 3000]
    for number, key in enumerate(keys):
        jpg = encode("jpg", picture(seed=number))
        add(tar, f"{key}.jpg", jpg)
        add(tar, f"{key}.txt", b"words")
        if key in ("", ".."):
            fates[f"{key}.jpg"] = fates[f"{key}.txt"] = "name has no key and extension"
        else:
            fates[key] = PACKED
    for number, raw in enumerate((b"\xff", b"caf\xe9", b"\xed\xa0\x80")):
        key = raw.decode("utf-8", "surrogateescape")
        if kind == "pax":
            continue  # whose names are UTF-8
        add(tar, f"{key}.png", encode("png", picture(seed=number)))
        fates[raw.decode("utf-8", "backslashreplace")] = PACKED
    for number, ext in enumerate((*odd_names("extensions"), "x" * 80 + ".jpg")):
        key = f"extension-{number}"
        add(tar, f"{key}.{ext}"[: 100 if kind == "ustar" else None], encode("jpg"))
        fates[key] = PACKED
    for number, ext in enumerate(("cls", "bin", "x" * 60, "json.gz", "über", "a b", "..", "tar")):
        key = f"other-{number}"
        add(tar, f"{key}.jpg", encode("jpg"))
        add(tar, f"{key}.{ext}", b"content")
        fates[key] = PACKED
    for name in ("README", "folder/Makefile", ".hidden.jpg", "a.", ".", "dot/."):
        add(tar, name, b"content")
        fates[name] = "name has no key and extension"
    for name in ("folder/._a.jpg", "__MACOSX/folder/a.jpg", "folder/.DS_Store"):
        add(tar, name, b"no data")
    for number, content in enumerate((b"\xff\xfe", b"\xc3", "ü".encode("latin-1"))):
        add(tar, f"caption-{number}.jpg", encode("jpg"))
        add(tar, f"caption-{number}.txt", content)
        fates[f"caption-{number}"] = "text is not UTF-8"
    for number, content in enumerate((b"", b"{", b"[" * 100_000, b"\xff")):
        add(tar, f"record-{number}.png", encode("png"))
        add(tar, f"record-{number}.json", content)
        fates[f"record-{number}"] = "not valid JSON"
    add(tar, "empty.jpg", b"")
    fates["empty"] = "file is empty"
    add(tar, "page.jpg", b"<html>")
    fates["page"] = "HTML page"
    add(tar, "text.txt", b"only words")
    fates["text"] = PACKED
    add(tar, "nothing.txt", b"")
    fates["nothing"] = "neither image nor text"
    for content in (encode("jpg"), encode("png")):
        add(tar, "twice.jpg", content)
        add(tar, "twice.txt", content[:0])
    fates["twice"] = fates["twice#2"] = PACKED
    add(tar, "apart.jpg", encode("jpg"))
    _add_specials(tar, fates)
    add(tar, "hard.txt", b"of a link")
    add(tar, "soft.txt", b"of a link")
    fates["soft.txt"] = "`jpg`, an image of its sample, cannot be read"
    add(tar, "apart.txt", b"far from its image")
    fates["apart"] = PACKED
    return fates


def _add_specials(tar: tarfile.TarFile, fates: Fates) -> None:
    for name, kind, target, fate in (
        ("hard.jpg", tarfile.LNKTYPE, "twice.jpg", PACKED),
        ("lost.jpg", tarfile.LNKTYPE, "nowhere.jpg", "which this tar does not hold"),
        ("out.jpg", tarfile.LNKTYPE, "../../etc/passwd", "which this tar does not hold"),
        ("soft.jpg", tarfile.SYMTYPE, "/etc/passwd", "links to /etc/passwd"),
        ("self.jpg", tarfile.SYMTYPE, "self.jpg", "links to self.jpg"),
        ("pipe.jpg", tarfile.FIFOTYPE, "", "neither a file nor a folder nor a link"),
        ("block.jpg", tarfile.BLKTYPE, "", "neither a file nor a folder nor a link"),
        ("char.jpg", tarfile.CHRTYPE, "", "neither a file nor a folder nor a link"),
    ):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, 0
        tar.addfile(info)
        fates[name if fate else Path(name).stem] = fate
    folder = tarfile.TarInfo("folder.jpg/")
    folder.type = tarfile.DIRTYPE
    tar.addfile(folder)


def damaged_tars() -> dict[str, tuple[bytes, str]]:
    """Whole archives that cannot be read to their end, and words of what is said of them."""

    def whole(**header: object) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=_PAX) as tar:
            add(tar, "a.jpg", encode("jpg"))
            add(tar, "b.jpg", encode("jpg"), **header)
            add(tar, "c.txt", b"words")
        return buffer.getvalue()

    good = whole()
    ends = "the file ends inside"
    cuts = {f"cut-{place}": (good[:place], ends) for place in (1, 100, 511, 513, 900, 1300, 2100)}
    flipped = bytearray(good)
    flipped[5] ^= 1
    return {
        **cuts,
        "flipped": (bytes(flipped), "this is not a tar file"),
        "html": (b"<html>" + b" " * 1000, "this is not a tar file"),
        "noise": (b"\xaa" * 2048, "this is not a tar file"),
        "gzip": (b"\x1f\x8b" + bytes(600), "compressed with gzip"),
        "zstd": (b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with zstd"),
        "sparse": (whole(pax_headers={"GNU.sparse.major": "1"}), "again without `--sparse`"),
        "sparse-old": (whole(type=tarfile.GNUTYPE_SPARSE), "again without `--sparse`"),
        "size": (whole(pax_headers={"size": "99999999999"}), ends),
        "size-words": (whole(pax_headers={"size": "many"}), "states a size of 'many'"),
        "size-negative": (whole(pax_headers={"size": "-5"}), "states a size of '-5'"),
        "size-digits": (whole(pax_headers={"size": "9" * 5000}), "states a size of"),
    }
