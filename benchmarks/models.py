"""Samples per second of batches for a model: `make_loader(model=)` and the model's own processor.

Each known checkpoint but LFM2-VL, whose processor needs torchvision, gets the same photographs of
about 0.2 MPix with conversations, in padded batches of 8. The processor runs in the workers of a
torch DataLoader, which decode with Pillow and collate; it is that of transformers with the backend
of Pillow. Options of the processors are those of the published checkpoints, their tokenizers are
small. A rate begins after the first batch, and after the compiled kernel is loaded, as it is after
some thousand images of a run.

The last column has the seconds in which the tokens of a million samples are counted from the sizes
of their images, 50 to 2,000 pixels a side, as planning does with an index.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import datapipe
from benchmarks.chats import chats
from benchmarks.common import (
    Contestant,
    Run,
    chosen,
    command,
    compete,
    headline,
    machine,
    parse,
    show,
    write_json,
)
from benchmarks.data import HOME, photographs
from benchmarks.peers.work import time_epoch
from datapipe.decode.normalize import KERNEL
from datapipe.decode.transform import make_transform
from datapipe.loader.schedule.image_token_counts import image_sizes
from datapipe.text.encode import TextEncoder
from datapipe.text.spec import with_image_tokens
from tests.models.checkpoints import CASES, Case

BATCH = 8
COMPARED = [source for source in CASES if not source.startswith("LiquidAI/")]


class Conversations(Dataset[tuple[list[dict[str, Any]], list[Image.Image]]]):
    def __init__(self, samples: int) -> None:
        raw = HOME / f"chats-{samples}"
        self._images = photographs(samples).raw
        self._records = json.loads((raw / "data.json").read_text())

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> tuple[list[dict[str, Any]], list[Image.Image]]:
        record = self._records[number]
        messages = []
        for turn in record["conversations"]:
            role = "user" if turn["from"] == "human" else "assistant"
            text = turn["value"]
            parts: list[dict[str, Any]] = [{"type": "image"}] * text.count("<image>")
            parts.append({"type": "text", "text": text.replace("<image>\n", "")})
            messages.append({"role": role, "content": parts})
        return messages, [Image.open(self._images / record["image"]).convert("RGB")]


def collate(
    processor: Any, samples: list[tuple[list[dict[str, Any]], list[Image.Image]]]
) -> dict[str, Any]:
    messages, images = map(list, zip(*samples, strict=True))
    texts = [processor.apply_chat_template(turns, tokenize=False) for turns in messages]
    batch = processor(text=texts, images=images, padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].clone()}


def contestants(
    case: Case, folder: Path, samples: int, workers: datapipe.WorkerSpec, count: int
) -> list[Contestant]:
    """Return the loader, for the checkpoint in a folder, and the processor in a DataLoader."""

    def ours() -> Callable[[], Run]:
        shards, _ = chats(samples)
        given: dict[str, Any] = {"model": folder, "num_workers": count, "workers": workers}
        loader = datapipe.make_loader(shards, batch_size=BATCH, drop_last=True, **given)
        KERNEL.load()  # else a run begins without it
        return partial(time_epoch, loader, lambda batch: BATCH, skip=1)

    def theirs() -> Callable[[], Run]:
        chats(samples)
        loader = DataLoader(
            Conversations(samples),
            batch_size=BATCH,
            shuffle=True,
            num_workers=count,
            collate_fn=partial(collate, case.make()),
            persistent_workers=True,
            drop_last=True,
        )
        return partial(time_epoch, loader, lambda batch: BATCH, skip=1)

    return [Contestant("datapipe", ours), Contestant("processor", theirs)]


def count_a_million(folder: Path) -> float:
    """Return the seconds that the tokens of a million images take, all of different sizes."""
    image, text = datapipe.specs_for(folder)
    text = with_image_tokens(text, image)
    sizes = image_sizes(text, make_transform(image), TextEncoder(text))
    widths, heights = np.random.default_rng(0).integers(50, 2001, (2, 1_000_000))
    begun = time.perf_counter()
    sizes.count("tokens", widths, heights)
    return time.perf_counter() - begun


def main() -> None:
    parser = command("models", __doc__)
    about = "worker processes for the loader too, not threads"
    parser.add_argument("--processes", action="store_true", help=about)
    options = parse(parser, samples=256, rounds=5)
    where = machine("transformers", "torch", "pillow", cache="warm")
    rows, found = [], {}
    for source in chosen(COMPARED, options.only):
        case = CASES[source]
        with tempfile.TemporaryDirectory(prefix="datapipe-model-") as name:
            folder = case.save(Path(name))
            kind = datapipe.WorkerSpec(kind="processes" if options.processes else "threads")
            entries = contestants(case, folder, options.samples, kind, options.workers)
            ours, theirs = compete(entries, options.rounds)
            counting = count_a_million(folder)
        row = {
            "options of": source,
            "datapipe samples/s": round(ours.rate.median, 1),
            "processor samples/s": round(theirs.rate.median, 1),
            "ratio (min-max)": str(ours.ratio(theirs)),
            "million, s": round(counting, 2),
        }
        rows.append(row)
        rates = {result.name: [run.rate for run in result.runs] for result in (ours, theirs)}
        found[source] = rates | {"a million token counts, s": counting}
    show(headline(where), rows)
    write_json(options.json, {"machine": where, "rates": found})


if __name__ == "__main__":
    main()
