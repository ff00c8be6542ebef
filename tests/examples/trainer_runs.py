"""Processes of the examples of trainers, and what they are to compute."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

import datapipe
from tests.imports import IMPORTS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "trainers"
PACK = 300
RATE = 1e-3


@dataclass(frozen=True)
class Example:
    """One file."""

    name: str
    package: str  # that it needs, and that may be missing
    fused: bool = False  # whether AdamW is, which rounds in another order
    decay: float = 0.01  # weight decay of AdamW
    # factor of the learning rate, by the step and the number of steps
    rate: Callable[[int, int], float] = lambda step, steps: 1.0
    accumulates: bool = True  # whether a step can have several packs
    hugging: bool = False  # whether its options have the names of transformers
    # folder that a kill leaves in the middle of a checkpoint; none if files are written at once
    incomplete: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    def line(
        self, model: Path, shards: Path, out: Path, steps: int, accumulate: int = 1
    ) -> list[str]:
        """Return its command line; a checkpoint is made every third step."""
        numbers: dict[str, Any] = {"pack": PACK}
        if self.hugging:
            numbers |= {"model": model, "shards": shards, "output_dir": out, "max_steps": steps}
            numbers |= {"save_steps": 3, "gradient_accumulation_steps": accumulate}
            numbers |= {"learning_rate": RATE, "bf16": False}
            paths = []
        else:
            numbers |= {"steps": steps, "save-every": 3, "lr": RATE}
            numbers |= {"accumulate": accumulate} if self.accumulates else {}
            paths = [model, shards, out]
        options = chain.from_iterable((f"--{name}", value) for name, value in numbers.items())
        return [str(self.path), *map(str, [*paths, *options])]

    def plain_losses(self, model: Path, shards: Path, steps: int, accumulate: int) -> list[float]:
        """Return the losses of a loop over the same packs without a framework."""
        learner = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
        optimizer = torch.optim.AdamW(
            learner.parameters(), lr=RATE, weight_decay=self.decay, fused=self.fused
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: self.rate(n, steps))
        meta = ["num_items_in_batch"]
        loader = datapipe.make_loader(shards, model=model, pack=PACK, meta=meta, num_workers=0)
        losses = []
        for group in islice(groups(loader, accumulate, self.name == "train_lightning"), steps):
            labels = sum(pack.pop("num_items_in_batch") for pack in group)
            loss = sum(learner(**pack, num_items_in_batch=labels).loss for pack in group)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses


HUGGING: dict[str, Any] = {
    "fused": True,
    "decay": 0.0,
    "rate": lambda step, steps: 1 - step / steps,
    "hugging": True,
    "incomplete": "checkpoint-6",
}
WARM: dict[str, Any] = {"rate": lambda step, steps: min(1.0, 0.1 + 0.09 * step)}
EXAMPLES = {
    example.name: example
    for example in (
        Example("train_torchtitan", "transformers", accumulates=False, incomplete="step-6"),
        Example("train_accelerate", "accelerate", **WARM, incomplete="part"),
        Example("train_lightning", "pytorch_lightning"),
        Example("train_hf_trainer", "accelerate", **HUGGING),
        Example("train_trl", "trl", **HUGGING),
    )
}


def groups(loader: datapipe.Loader, size: int, by_epoch: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the packs of a step; with the last of an epoch Lightning makes one of fewer."""
    if not by_epoch:
        packs = chain.from_iterable(loader for _ in count())
        while True:
            yield list(islice(packs, size))
    while True:
        packs = iter(loader)
        while group := list(islice(packs, size)):
            yield group


class Process:
    """A run of an example."""

    def __init__(self, line: list[str], folder: Path, **variables: str) -> None:
        self._batches = folder / "batches"
        self._errors = folder / "errors"
        folder.mkdir()
        given = IMPORTS | {
            "BATCHES": str(self._batches),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("trainer_process.py")), *line],
                env=os.environ | given | variables,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait(self) -> int:
        """Return its exit status."""
        try:
            self._output = self._process.communicate(timeout=900)[0]  # a rank may wait in vain
        finally:
            self._process.kill()
        return self._process.returncode

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def losses(self) -> dict[int, float]:
        """By the number of their step."""
        found = re.findall(r"^step (\d+)  loss (\S+)$", self._output, re.MULTILINE)
        return {int(step): float(loss) for step, loss in found}

    @property
    def batches(self) -> list[str]:
        """Digests of the batches that were taken."""
        return self._batches.read_text().splitlines()
