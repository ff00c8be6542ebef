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


def parts(role: str, text: str, *, image: bool = False) -> Rows:
    content = [{"type": "text", "text": text}]
    return [{"role": role, "content": [{"type": "image", "text": None}] * image + content}]


def formatted(n: int) -> dict[str, Any]:
    question, chosen, rejected = said(n)
    return {
        "images": [photo(n)],
        "prompt": parts("user", question, image=True),
        "chosen": parts("assistant", chosen),
        "rejected": parts("assistant", rejected),
    }


def rlaif_v(n: int) -> dict[str, Any]:
    question, chosen, rejected = said(n)
    row = {"ds_name": "RLAIF-V", "image": photo(n), "question": question, "chosen": chosen}
    origin = {"origin_split": json.dumps({"model": "m"}), "idx": str(n), "image_path": f"v/{n}.jpg"}
    return row | {"rejected": rejected} | origin


def implicit(n: int) -> dict[str, Any]:
    question, chosen, rejected = said(n)
    turns = [user(question), assistant(chosen)], [user(question), assistant(rejected)]
    return {"images": [photo(n)], "chosen": turns[0], "rejected": turns[1], "score_chosen": 8.5}


def binarized(n: int) -> dict[str, Any]:
    question, chosen, _ = said(n)
    return implicit(n) | {"prompt": question, "messages": [user(question), assistant(chosen)]}


def one_message(n: int) -> dict[str, Any]:
    question, chosen, rejected = said(n)
    row = {"image": photo(n), "prompt": [user(question)], "chosen": assistant(chosen)}
    return row | {"rejected": assistant(rejected), "chosen-rating": 4.0}


def llama_factory(n: int) -> dict[str, Any]:
    question, chosen, rejected = said(n)
    return {
        "conversations": [{"from": "human", "value": f"<image>{question}"}],
        "chosen": {"from": "gpt", "value": chosen},
        "rejected": {"from": "gpt", "value": rejected},
        "images": [f"{n}.png"],
    }


def ms_swift(n: int) -> dict[str, Any]:
    question, chosen, rejected = said(n)
    messages = [user(f"<image>{question}"), assistant(chosen)]
    return {"messages": messages, "rejected_response": rejected, "images": [f"{n}.png"]}


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
