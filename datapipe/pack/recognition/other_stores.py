"""Files of other libraries, and how to convert them.

The files of TensorFlow, LMDB, Streaming, LitData, h5py and `datasets` are not read. Their users get
the lines of Python that write them as files that are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapipe.pack.input.file_starts import start_of
from datapipe.pack.records.streams.json_stream import small_object

_FEW = 20
_NUMBERED = re.compile(r".*-\d{5}-of-\d{5}")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LMDB = b"\xde\xc0\xef\xbe"  # at byte 16: https://github.com/LMDB/lmdb, MDB_MAGIC
_PICTURES = ("jpeg", "png", "pil", "jpegarray", "jpeg_array")  # encodings of MDS


def other_library(files: Sequence[Path]) -> str:
    """Return what some files are, with the Python that converts them; "" for files of none."""
    finds = (_index, _arrow, _lmdb, _hdf5, _tfrecord)
    return next(filter(None, (find(files) for find in finds)), "")


def _recipe(what: str, imports: Sequence[str], *lines: str, hint: str = "") -> str:
    """Return the name of some files with the Python that writes them as files that are read.

    `hint` says what has to be changed in the lines.
    """
    code = ["from pathlib import Path", *imports, 'Path("raw").mkdir()', *lines]
    return "\n    ".join([f"{what}, which are not read. Convert them first:", *code]) + (
        f"\n{hint}" if hint else ""
    )


def _named(files: Sequence[Path], extensions: tuple[str, ...]) -> list[Path]:
    """Return the files with an extension and, as writers choose their own, the first few others."""
    named = [path for path in files if path.suffix.lower() in extensions]
    return [*named, *files[:_FEW]]


def _index(files: Sequence[Path]) -> str:
    """Return the recipe for an `index.json` of MosaicML Streaming or LitData."""
    for path in files:
        if path.name != "index.json":
            continue
        index = small_object(path)
        shards, chunks = index.get("shards"), index.get("chunks")
        first = shards[0] if isinstance(shards, list) and shards else None
        if isinstance(first, dict) and "format" in first:
            return _streaming(path.parent, first)
        if isinstance(chunks, list) and isinstance(index.get("config"), dict):
            return _litdata(path.parent)
    alone = next((path for path in files if ".mds" in path.suffixes), None)
    return _streaming(alone.parent, {"format": "mds"}) if alone else ""


def _streaming(home: Path, shard: dict[str, Any]) -> str:
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
    return _recipe(
        f"shards of MosaicML Streaming ({str(shard['format']).upper()})",
        ["from streaming import LocalDataset"],
        f"for i, sample in enumerate(LocalDataset({str(home)!r})):",
        f"    {image}",
        f'    Path(f"raw/{{i:08}}.txt").write_text(sample[{text!r}], "utf-8")',
        hint=f"A sample is a dict of its columns{listed}.",
    )


def _litdata(home: Path) -> str:
    return _recipe(
        "chunks of LitData",
        ["from litdata import StreamingDataset", "from torchvision.io import write_png"],
        f"for i, sample in enumerate(StreamingDataset({str(home)!r})):",
        '    write_png(sample["image"], f"raw/{i:08}.png")',
        '    Path(f"raw/{i:08}.txt").write_text(sample["text"], "utf-8")',
        hint='A sample is what `optimize` was given; "image" and "text" stand for its names.',
    )


def _arrow(files: Sequence[Path]) -> str:
    """Return the recipe for Arrow files, those of `Dataset.save_to_disk` among them."""
    found = [path for path in files if path.suffix.lower() in (".arrow", ".feather")]
    if not found:
        return ""
    home = found[0].parent
    saved, load = "Arrow files of `save_to_disk`", ["from datasets import load_from_disk"]
    if splits := next((path for path in files if path.name == "dataset_dict.json"), None):
        return _recipe(
            saved,
            load,
            f"for name, split in load_from_disk({str(splits.parent)!r}).items():",
            '    split.to_parquet(f"raw/{name}.parquet")',
        )
    if home / "state.json" in files:
        line = f'load_from_disk({str(home)!r}).to_parquet("raw/data.parquet")'
        return _recipe(saved, load, line)
    read = "open_file" if start_of(found[0], 6) == b"ARROW1" else "open_stream"
    paths = str(found[0]) if len(found) == 1 else str(home / f"*{found[0].suffix}")
    return _recipe(
        "Arrow files",
        ["import glob, pyarrow, pyarrow.parquet"],
        f"for i, path in enumerate(sorted(glob.glob({paths!r}))):",
        f"    table = pyarrow.ipc.{read}(pyarrow.memory_map(path)).read_all()",
        '    pyarrow.parquet.write_table(table, f"raw/{i:05}.parquet")',
    )


def _lmdb(files: Sequence[Path]) -> str:
    named = _named(files, (".mdb", ".lmdb"))
    path = next((path for path in named if start_of(path, 20)[16:] == _LMDB), None)
    if path is None:
        return ""
    home, more = (path.parent, "") if path.name == "data.mdb" else (path, ", subdir=False")
    return _recipe(
        "LMDB databases",
        ["import lmdb"],
        f"with lmdb.open({str(home)!r}, readonly=True, lock=False{more}).begin() as rows:",
        "    for i, (key, value) in enumerate(rows.cursor()):",
        '        Path(f"raw/{i:08}.jpg").write_bytes(value)',
        hint="This takes each value for an image. If values hold more, take them apart as your "
        'training code does, and write the text to f"raw/{i:08}.txt".',
    )


def _hdf5(files: Sequence[Path]) -> str:
    named = _named(files, (".h5", ".hdf5", ".hdf", ".he5"))
    path = next((path for path in named if start_of(path, 8) == _HDF5), None)
    if path is None:
        return ""
    return _recipe(
        "HDF5 files",
        ["import h5py", "from PIL import Image"],
        f"with h5py.File({str(path)!r}) as file:",
        '    for i, (image, text) in enumerate(zip(file["images"], file["captions"])):',
        '        Image.fromarray(image).save(f"raw/{i:08}.png")',
        '        Path(f"raw/{i:08}.txt").write_bytes(text)',
        hint='"images" and "captions" stand for names in `list(file)`.',
    )


def _tfrecord(files: Sequence[Path]) -> str:
    found = [path for path in files if _is_tfrecord(path)]
    if not found:
        return ""
    path = found[0]
    name = str(path)
    if len(found) > 1:
        name = str(path.parent / ("*.tfrec*" if ".tfrec" in path.name else "*-of-*"))
    kind = ', "GZIP"' if path.suffix == ".gz" else ""
    return _recipe(
        "TFRecords",
        ["import glob", "import tensorflow as tf"],
        f"records = tf.data.TFRecordDataset(sorted(glob.glob({name!r})){kind})",
        "for i, record in enumerate(records):",
        "    feature = tf.train.Example.FromString(record.numpy()).features.feature",
        '    Path(f"raw/{i:08}.jpg").write_bytes(feature["image"].bytes_list.value[0])',
        '    Path(f"raw/{i:08}.txt").write_bytes(feature["caption"].bytes_list.value[0])',
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
