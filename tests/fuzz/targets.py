"""Parsers of datapipe, each as a function of the bytes of one file.

A folder of the corpus has the seeds of each, and inputs that once failed.
"""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import datapipe
from datapipe.decode.image import check_image
from datapipe.errors import DatapipeError
from datapipe.index.files.npy import map_npy
from datapipe.index.files.sealed_json import seal, unseal_lines
from datapipe.index.images.header import NeedMoreData, probe
from datapipe.index.manifest import parse_manifest
from datapipe.index.parquet import parse_index
from datapipe.index.tar.headers import TarScanner
from datapipe.index.where.evaluate import evaluate, parse_where
from datapipe.mixture.parse import parse_file
from datapipe.pack.records.fields.field_map import apply_map

from ..index.where_columns import COLUMNS, EXTRA, ROWS

CORPUS = Path(__file__).parent / "corpus"
Target = Callable[[bytes, Path], None]
TARGETS: dict[str, Target] = {}


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def resealed(data: bytes) -> str:
    """Return a JSON object with the checksum that it should have: parsers have to look at it all.

    Raises ValueError for other content.
    """
    try:
        document = json.loads(data)
        document.pop("crc32", None)
        return seal(document)
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError from error


@target
def tar(data: bytes, folder: Path) -> None:
    (folder / "a.tar").write_bytes(data)
    with suppress(DatapipeError), TarScanner(folder / "a.tar") as scanner:
        assert all(member.offset + member.size <= len(data) for member in scanner)
    # Damage is a finding, and no error.
    datapipe.verify_dataset(folder, deep=True, workers=1)
    with suppress(DatapipeError):
        datapipe.index_shards(folder)
        datapipe.verify_dataset(folder, workers=1)


@target
def index(data: bytes, folder: Path) -> None:
    parse_index(data, "a.parquet")
    # Without a manifest, verify and repair take it as it is.
    shutil.copy(CORPUS / "tar" / "ustar.tar", folder / "shard-000000.tar")
    (folder / "shard-000000.parquet").write_bytes(data)
    datapipe.verify_dataset(folder, workers=1)


@target
def manifest(data: bytes, folder: Path) -> None:
    with suppress(DatapipeError):
        parse_manifest(data, "dataset.json")
    with suppress(ValueError):
        (folder / "dataset.json").write_text(resealed(data), errors="surrogatepass")
        datapipe.summarize_dataset(folder)


@target
def state(data: bytes, folder: Path) -> None:
    """States, with a right checksum unless the mixture differs: nothing else vouches for that."""
    try:
        document, held = json.loads(data), json.loads(resealed(data))
    except (ValueError, RecursionError):
        return
    loader = _loader()
    with suppress(DatapipeError):
        loader.load_state_dict(document)
    with suppress(KeyError, TypeError):
        if held["plan"]["mixture"] == loader.state_dict()["plan"]["mixture"]:
            document = held
    loader.load_state_dict(document)


@cache
def _loader() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="datapipe-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    shutil.copy(CORPUS / "tar" / "ustar.tar", folder)
    return datapipe.make_loader(folder, batch_size=1, image=None, num_workers=0)


@target
def where(data: bytes, folder: Path) -> None:
    expression = parse_where(data.decode("utf-8", "replace"))
    evaluate(expression, COLUMNS, EXTRA | {"tokens": EXTRA["text_tokens"]}, 0, len(ROWS))


@target
def mixture(data: bytes, folder: Path) -> None:
    for name in ("a.yaml", "a.json"):
        (folder / name).write_bytes(data)
        with suppress(DatapipeError):
            datapipe.Mixture.of(parse_file(folder / name).to_dict())


@target
def image(data: bytes, folder: Path) -> None:
    with suppress(NeedMoreData, DatapipeError):
        probe(data[: len(data) // 2], complete=False)
    info = probe(data)
    assert min(info.upright) > 0
    if info.width * info.height < 1_000_000:
        check_image(data, info)


@target
def field_map(data: bytes, folder: Path) -> None:
    record = {"a": {"b": ["x", 1]}, "image": "a.jpg", "q": "Why?", "t": None}
    apply_map(record, data.decode("utf-8", "replace"), "a/0.jpg")


@target
def checkpoint(data: bytes, folder: Path) -> None:
    """Files of a model, in one JSON object by name."""
    try:
        files = json.loads(data)
    except (ValueError, RecursionError):
        return
    for name, content in files.items() if isinstance(files, dict) else ():
        with suppress(OSError, ValueError):
            (folder / name.replace("/", "_")).write_text(json.dumps(content))
    datapipe.specs_for(folder)


@target
def npy(data: bytes, folder: Path) -> None:
    (folder / "a.npy").write_bytes(data)
    map_npy(folder / "a.npy", "<i4")


@target
def journal(data: bytes, folder: Path) -> None:
    documents, ends = unseal_lines(data)
    assert len(documents) == len(ends)
    assert ends == sorted(ends)


@target
def columns(data: bytes, folder: Path) -> None:
    """Descriptions of columns and of a field; what cannot be used is made again."""
    shutil.copy(CORPUS / "tar" / "ustar.tar", folder / "a.tar")
    datapipe.index_fields(folder, "score")
    for path in (folder / "columns" / "columns.json", *folder.glob("fields/*/field.json")):
        path.write_bytes(data)
    datapipe.summarize_dataset(folder)
    datapipe.verify_dataset(folder, workers=1)
    datapipe.inspect_sample(folder, 0)


def _raw(name: str) -> Target:
    """Return a target that packs a raw file beside two images."""

    def pack(data: bytes, folder: Path) -> None:
        raw = folder / "raw"
        raw.mkdir()
        for number in range(2):
            shutil.copy(CORPUS / "image" / "small.jpg", raw / f"{number}.jpg")
        (raw / name).write_bytes(data)
        datapipe.pack_dataset(raw, folder / "out", workers=1, max_rejects=1.0, space_check=False)
        assert datapipe.verify_dataset(folder / "out", workers=1).is_whole

    return pack


for _name in (
    *("chats.json", "chats.jsonl", "captions.csv", "captions.tsv", "captions.txt"),
    *("table.parquet", "coco.json", "pairs.tar", "metadata.jsonl"),
):
    TARGETS[_name] = _raw(_name)

SLOW = {name for name in TARGETS if "." in name} | {"tar", "index", "columns"}
"""Targets that take a hundred times as long as the others."""
