"""Rows of preference pairs in the layouts of real datasets, and packed datasets of them."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import datapipe

from .conftest import PHOTOS
from .stated import read

LAYOUTS = read("pair_rows")
Rows = list[dict[str, Any]]


def photo(number: int) -> dict[str, Any]:
    """An image as Hugging Face keeps it in a cell of a table."""
    source = Image.open(PHOTOS / "chelsea.png").convert("RGB")
    data = io.BytesIO()
    source.crop((number, number, number + 90 + number, number + 70)).save(data, "PNG")
    return {"bytes": data.getvalue(), "path": f"{number}.png"}


def said(number: int) -> tuple[str, str, str]:
    """A question, the better answer and the worse one; now this, now that is longer."""
    chosen = "It is a cat" + " that sleeps" * (number % 4)
    rejected = "A dog" + ", and it barks" * (number % 3)
    return f"What is number {number}?", f"{chosen}.", f"{rejected}."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def row(layout: str, number: int) -> dict[str, Any]:
    """Return a row in a layout of `pair_rows.yaml`."""
    words = dict(zip(("question", "chosen", "rejected"), said(number), strict=True))

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: filled(value) for name, value in part.items()}
        if isinstance(part, list):
            return list(map(filled, part))
        if part == "photo":
            return photo(number)
        return part.format(n=number, **words) if isinstance(part, str) else part

    found: dict[str, Any] = filled(LAYOUTS[layout])
    return found


def pack(root: Path, rows: Rows, **options: Any) -> Path:
    """Pack rows as a table, or as JSON if they name files."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    if any(isinstance(value, list) and value[:1] == ["0.png"] for value in rows[0].values()):
        (raw / "data.json").write_text(json.dumps(rows))
        for number in range(len(rows)):
            (raw / f"{number}.png").write_bytes(photo(number)["bytes"])
    else:
        pq.write_table(pa.Table.from_pylist(rows), raw / "train-00000-of-00001.parquet")
    report = datapipe.pack_dataset(raw, root / "shards", shard_size=4, **options)
    assert (report.samples, report.rejected) == (len(rows), 0)
    return root / "shards"


def loader_of(
    path: Path, text: Callable[..., datapipe.TextSpec], batch_size: int
) -> Callable[..., datapipe.Loader]:
    """Return a function that makes loaders; `spec` are options of their texts."""

    def make(**options: Any) -> datapipe.Loader:
        spec = text(**options.pop("spec", {}))
        if "max_tokens" not in options:
            options.setdefault("batch_size", batch_size)
        options.setdefault("image", datapipe.ImageSpec(size=28))
        options.setdefault("num_workers", 0)
        return datapipe.make_loader(options.pop("path", path), text=spec, **options)

    return make
