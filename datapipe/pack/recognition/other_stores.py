"""Data that no reader takes, by its cause: an empty folder, one image, or the files of a library.

The files of TensorFlow, LMDB, Streaming, LitData, h5py and `datasets` are not read. Their users get
the lines of Python that write them as files that are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.file_kinds import is_paper, medium_of
from datapipe.pack.input.file_start import start_of
from datapipe.pack.input.survey import Survey

_FILES = 20_000
_FEW = 20
_INDEX = 64 << 20  # bytes of an index that is read
_NUMBERED = re.compile(r".*-\d{5}-of-\d{5}")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LMDB = b"\xde\xc0\xef\xbe"  # at byte 16: https://github.com/LMDB/lmdb, MDB_MAGIC
_PICTURES = ("jpeg", "png", "pil", "jpegarray", "jpeg_array")  # encodings of MDS


class _LibraryFiles(NamedTuple):
    """Files of one library."""

    what: str  # their name in messages
    # Python that writes an image and a text for each sample, or a Parquet file
    lines: tuple[str, ...]
    hint: str = ""  # what has to be changed in them; "" for nothing


def why_unread(survey: Survey) -> str:
    """Return why no reader takes a path, with the remedy; "" if no cause is known."""
    raw = survey.raw
    if survey.is_file and is_image_extension(raw.suffix[1:]):
        home = shlex.quote(str(raw.parent))
        return f"{raw} is one image; give the folder that holds it: datapipe pack {home} OUT"
    files = _files(survey)
    if not files:
        return _empty(survey)
    for find in (_index, _arrow, _lmdb, _hdf5, _tfrecord):
        if store := find(files):
            return _say(raw, store)
    return _of_one_medium(survey, files)


def _files(survey: Survey) -> list[Path]:
    """Return the first files at a path."""
    if survey.is_file:
        return [survey.raw]
    found: list[Path] = []
    for listing in survey.walk():
        found += map(Path, listing.paths())
        if len(found) >= _FILES:
            break
    return found


def _empty(survey: Survey) -> str:
    raw = survey.raw
    remedy = "give the folder that holds the images and texts"
    hidden = next((p for p in raw.rglob(".*") if p.is_file()), None)
    if hidden is not None:
        return f"{raw} has only hidden files, such as {hidden.name}, which are not read; {remedy}"
    return (
        f"{raw} is empty"
        + (": its folders hold no files" if survey.top.folders else "")
        + f"; {remedy}"
    )


def _of_one_medium(survey: Survey, files: Sequence[Path]) -> str:
    data = [path for path in files if not is_paper(path.name)]
    media = Counter(medium_of(path.name) for path in data)
    if len(media) != 1 or not (medium := next(iter(media))) or medium == "an archive":
        return ""
    name, raw = data[0].name, survey.raw
    if survey.is_file:
        return f"{raw} is {medium}; only images and text are packed"
    held = f"{len(data):,} files, each" if len(data) > 1 else "one file,"
    return f"{raw} holds {held} {medium} ({name}); only images and text are packed"


def _say(raw: Path, store: _LibraryFiles) -> str:
    lines = "".join(f"\n    {line}" for line in store.lines)
    hint = f"\n{store.hint}" if store.hint else ""
    return (
        f"{raw} holds {store.what}, which are not read. Convert them first:{lines}{hint}\n"
        "Then pack the folder `raw`."
    )


def _named(files: Sequence[Path], extensions: tuple[str, ...]) -> list[Path]:
    """Return the files with an extension and, as writers choose their own, the first few others."""
    named = [path for path in files if path.suffix.lower() in extensions]
    return [*named, *files[:_FEW]]


def _samples(image: str, text: str, indent: str = "    ") -> tuple[str, str]:
    """Return the lines of a loop that write an image and a text, given the statements that do."""
    return (f"{indent}{image}", f"{indent}{text}")


# --- each library's files -------------------------------------------------------------------------


def _index(files: Sequence[Path]) -> _LibraryFiles | None:
    """Return the store of an `index.json` of MosaicML Streaming or LitData."""
    for path in files:
        if path.name != "index.json":
            continue
        index = _read_json(path)
        shards, chunks = index.get("shards"), index.get("chunks")
        first = shards[0] if isinstance(shards, list) and shards else None
        if isinstance(first, dict) and "format" in first:
            return _streaming(path.parent, first)
        if isinstance(chunks, list) and isinstance(index.get("config"), dict):
            return _litdata(path.parent)
    alone = next((path for path in files if ".mds" in path.suffixes), None)
    return _streaming(alone.parent, {"format": "mds"}) if alone else None


def _streaming(home: Path, shard: dict[str, Any]) -> _LibraryFiles:
    names, kinds = shard.get("column_names"), shard.get("column_encodings")
    columns: dict[str, str] = {}
    if isinstance(names, list) and isinstance(kinds, list):
        columns = dict(zip(map(str, names), map(str, kinds), strict=False))
    texts = [name for name, kind in columns.items() if kind == "str"]
    images = [name for name, kind in columns.items() if kind.partition(":")[0] in _PICTURES]
    held = [name for name, kind in columns.items() if kind == "bytes"]
    text = texts[0] if texts else "text"
    if images or not held:
        image = f'sample[{(images or ["image"])[0]!r}].save(f"raw/{{i:08}}.png")'
    else:
        image = f'Path(f"raw/{{i:08}}.jpg").write_bytes(sample[{held[0]!r}])'
    listed = f", {', '.join(map(repr, columns))}" if columns else ""
    return _LibraryFiles(
        what=f"shards of MosaicML Streaming ({str(shard['format']).upper()})",
        lines=(
            "from pathlib import Path",
            "from streaming import LocalDataset",
            'Path("raw").mkdir()',
            f"for i, sample in enumerate(LocalDataset({str(home)!r})):",
            *_samples(image, f'Path(f"raw/{{i:08}}.txt").write_text(sample[{text!r}], "utf-8")'),
        ),
        hint=f"A sample is a dict of its columns{listed}.",
    )


def _litdata(home: Path) -> _LibraryFiles:
    return _LibraryFiles(
        what="chunks of LitData",
        lines=(
            "from pathlib import Path",
            "from litdata import StreamingDataset",
            "from torchvision.io import write_png",
            'Path("raw").mkdir()',
            f"for i, sample in enumerate(StreamingDataset({str(home)!r})):",
            *_samples(
                'write_png(sample["image"], f"raw/{i:08}.png")',
                'Path(f"raw/{i:08}.txt").write_text(sample["text"], "utf-8")',
            ),
        ),
        hint='A sample is what `optimize` was given; "image" and "text" stand for its names.',
    )


def _arrow(files: Sequence[Path]) -> _LibraryFiles | None:
    """Return the store of Arrow files, those of `Dataset.save_to_disk` among them."""
    found = [path for path in files if path.suffix.lower() in (".arrow", ".feather")]
    if not found:
        return None
    home = found[0].parent
    lines: tuple[str, ...]
    if any(path.name == "dataset_dict.json" for path in files):
        home = next(path for path in files if path.name == "dataset_dict.json").parent
        lines = (
            "from pathlib import Path",
            "from datasets import load_from_disk",
            'Path("raw").mkdir()',
            f"for name, split in load_from_disk({str(home)!r}).items():",
            '    split.to_parquet(f"raw/{name}.parquet")',
        )
    elif any(path == home / "state.json" for path in files):
        lines = (
            "from pathlib import Path",
            "from datasets import load_from_disk",
            'Path("raw").mkdir()',
            f'load_from_disk({str(home)!r}).to_parquet("raw/data.parquet")',
        )
    else:
        is_file = start_of(found[0], 6) == b"ARROW1"
        read = "open_file" if is_file else "open_stream"
        paths = str(found[0]) if len(found) == 1 else str(home / f"*{found[0].suffix}")
        lines = (
            "import glob, pathlib, pyarrow, pyarrow.parquet",
            'pathlib.Path("raw").mkdir()',
            f"for i, path in enumerate(sorted(glob.glob({paths!r}))):",
            f"    table = pyarrow.ipc.{read}(pyarrow.memory_map(path)).read_all()",
            '    pyarrow.parquet.write_table(table, f"raw/{i:05}.parquet")',
        )
        return _LibraryFiles(what="Arrow files", lines=lines)
    return _LibraryFiles(what="Arrow files of `save_to_disk`", lines=lines)


def _lmdb(files: Sequence[Path]) -> _LibraryFiles | None:
    named = _named(files, (".mdb", ".lmdb"))
    path = next((path for path in named if start_of(path, 20)[16:] == _LMDB), None)
    if path is None:
        return None
    is_folder = path.name == "data.mdb"
    home, more = (path.parent, "") if is_folder else (path, ", subdir=False")
    return _LibraryFiles(
        what="LMDB databases",
        lines=(
            "import lmdb",
            "from pathlib import Path",
            'Path("raw").mkdir()',
            f"with lmdb.open({str(home)!r}, readonly=True, lock=False{more}).begin() as rows:",
            "    for i, (key, value) in enumerate(rows.cursor()):",
            '        Path(f"raw/{i:08}.jpg").write_bytes(value)',
        ),
        hint=(
            "This takes each value for an image. If values hold more, take them apart as your "
            'training code does, and write the text to f"raw/{i:08}.txt".'
        ),
    )


def _hdf5(files: Sequence[Path]) -> _LibraryFiles | None:
    named = _named(files, (".h5", ".hdf5", ".hdf", ".he5"))
    path = next((path for path in named if start_of(path, 8) == _HDF5), None)
    if path is None:
        return None
    return _LibraryFiles(
        what="HDF5 files",
        lines=(
            "import h5py",
            "from pathlib import Path",
            "from PIL import Image",
            'Path("raw").mkdir()',
            f"with h5py.File({str(path)!r}) as file:",
            '    for i, (image, text) in enumerate(zip(file["images"], file["captions"])):',
            *_samples(
                'Image.fromarray(image).save(f"raw/{i:08}.png")',
                'Path(f"raw/{i:08}.txt").write_bytes(text)',
                indent=" " * 8,
            ),
        ),
        hint='"images" and "captions" stand for names in `list(file)`.',
    )


def _tfrecord(files: Sequence[Path]) -> _LibraryFiles | None:
    found = [path for path in files if _is_tfrecord(path)]
    if not found:
        return None
    path = found[0]
    name = str(path)
    if len(found) > 1:
        end = ".tfrec*" if ".tfrec" in path.name else "*-of-*"
        name = str(path.parent / f"*{end.lstrip('*')}")
    kind = ', "GZIP"' if path.suffix == ".gz" else ""
    return _LibraryFiles(
        what="TFRecords",
        lines=(
            "import glob",
            "from pathlib import Path",
            "import tensorflow as tf",
            'Path("raw").mkdir()',
            f"records = tf.data.TFRecordDataset(sorted(glob.glob({name!r})){kind})",
            "for i, record in enumerate(records):",
            "    feature = tf.train.Example.FromString(record.numpy()).features.feature",
            *_samples(
                'Path(f"raw/{i:08}.jpg").write_bytes(feature["image"].bytes_list.value[0])',
                'Path(f"raw/{i:08}.txt").write_bytes(feature["caption"].bytes_list.value[0])',
            ),
        ),
        hint='"image" and "caption" stand for names in `list(feature)`.',
    )


def _is_tfrecord(path: Path) -> bool:
    """Return whether a file is named as TFRecords are; numbered ones begin with a length.

    Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
    """
    name = path.name.lower()
    if ".tfrec" in name:
        return True
    if not _NUMBERED.fullmatch(name) and "tfrecord" not in name:
        return False
    start = start_of(path, 12)
    length = int.from_bytes(start[:8], "little")
    return len(start) == 12 and 0 < length <= os.path.getsize(path) - 16


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _INDEX:
            return {}
        held = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return {}
    return held if isinstance(held, dict) else {}
