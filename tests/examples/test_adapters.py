"""Loops of frameworks see the losses of a plain loop, and repeat them when they are resumed."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import datapipe
from examples import huggingface_models
from examples.vlm.model.config import MODELS, ModelConfig, VisionConfig
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.tiny import make_tiny

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("train_lightning", "train_accelerate", "train_hf_trainer")
PACKAGES = {
    "train_lightning": "pytorch_lightning",
    "train_accelerate": "accelerate",
    "train_hf_trainer": "transformers",
}
SIZES = (("--pack", "300"), ("--batch-size", "4"))
STEPS = 8  # of one or two batches: into the second epoch, of 7 padded batches or as many packs

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
]


SMALL = ModelConfig(
    vision=VisionConfig(width=16, layers=2, heads=2, patch=4, image_size=16),
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
)


def forget_accelerate() -> None:
    """Accelerate keeps what it knows of the process for all of its life."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


class Killed(Exception):
    """What ends a run in the middle."""


@pytest.fixture(autouse=True)
def _small_and_tidy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    monkeypatch.setitem(MODELS, "tiny", SMALL)
    with caplog.at_level(logging.ERROR, "pytorch_lightning"):
        yield
    forget_accelerate()
    gc.collect()  # frameworks keep iterators in reference cycles
    for thread in threading.enumerate():
        if thread.name.startswith("datapipe-worker"):
            thread.join(30)
            assert not thread.is_alive()


class Adapter:
    """An example, run by its command line.

    Attributes:
        name: of its file.
        module: that it is.
        losses: of the steps that it made, exactly.
    """

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip(PACKAGES[name])
        self.name = name
        self.module = importlib.import_module(f"examples.{name}")
        self.losses: list[float] = []
        self._stop_after: int | None = None
        getattr(self, f"_watch_{name}")(monkeypatch)

    def run(self, shards: Path, *arguments: Any, stop_after: int | None = None) -> list[float]:
        """Losses of the steps that were made; an error ends the run once it has made so many."""
        self.losses, self._stop_after = [], stop_after
        try:
            self.module.main([str(shards), *map(str, arguments)])
        except Killed:
            assert stop_after is not None
        return self.losses

    def _note(self, loss: float) -> None:
        if len(self.losses) == self._stop_after:
            raise Killed
        self.losses.append(loss)

    def _watch_train_lightning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.module.Captioner.log

        def watched(module: Any, name: str, value: Tensor, **options: Any) -> None:
            self._note(float(value))
            log(module, name, value, **options)

        monkeypatch.setattr(self.module.Captioner, "log", watched)

    def _watch_train_accelerate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        train = self.module.train

        def watched(*arguments: Any) -> Iterator[tuple[int, float]]:
            for step, loss in train(*arguments):
                self._note(loss)
                yield step, loss

        monkeypatch.setattr(self.module, "train", watched)

    def _watch_train_hf_trainer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def watched(trainer: Any, logs: dict[str, float], *others: Any) -> None:
            if "loss" in logs:
                self._note(logs["loss"])

        monkeypatch.setattr(self.module.LoaderTrainer, "log", watched)


@pytest.fixture(params=NAMES)
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Adapter:
    return Adapter(request.param, monkeypatch)


def checkpoint(name: str, folder: Path, step: int) -> Path:
    """What was saved after a step."""
    names = {"train_accelerate": "step-{}", "train_hf_trainer": "checkpoint-{}"}
    if name in names:
        return folder / names[name].format(step)
    (found,) = folder.glob(f"*step={step}.ckpt")
    return found


def plain_losses(name: str, shards: Path, size: tuple[str, str], accumulate: int) -> list[float]:
    """A loop over the same loader, with the same model and optimizer and no framework."""
    sizes = {size[0].strip("-").replace("-", "_"): int(size[1])}
    hugging = name == "train_hf_trainer"
    model, specs = huggingface_models.make_tiny("qwen2-vl") if hugging else make_tiny()
    loader = datapipe.make_loader(shards, **specs, **sizes, meta=["num_items_in_batch"])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, weight_decay=0 if hugging else 0.01, fused=hugging
    )
    rates = {
        "train_lightning": lambda step: 1.0,
        "train_accelerate": lambda step: min(1.0, 0.1 + 0.09 * step),
        "train_hf_trainer": lambda step: 1 - step / STEPS,
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates[name])
    losses: list[float] = []
    for group in islice(groups(loader, accumulate, name == "train_lightning"), STEPS):
        labels = sum(batch.pop("num_items_in_batch") for batch in group)
        losses.append(0.0)
        for batch in group:
            if hugging:
                loss = model(**batch, num_items_in_batch=torch.tensor(labels)).loss
            else:
                loss = model(make_inputs(batch, model.config, model.kernel)).sum() / labels
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses


def groups(loader: datapipe.Loader, count: int, by_epoch: bool) -> Iterator[list[Any]]:
    """Batches of a step; with the last of an epoch Lightning makes one of fewer."""
    group: list[Any] = []
    while True:
        for batch in loader:
            group.append(batch)
            if len(group) == count:
                yield group
                group = []
        if group and by_epoch:
            yield group
            group = []


@pytest.mark.campaign
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=" ".join)
def test_losses_are_those_of_a_plain_loop_and_are_repeated_after_a_stop(
    adapter: Adapter, shards: Path, tmp_path: Path, size: tuple[str, str], accumulate: int
) -> None:
    line = (*size, "--accumulate", accumulate, "--steps", STEPS)
    whole = adapter.run(shards, *line)
    assert whole == pytest.approx(plain_losses(adapter.name, shards, size, accumulate), rel=1e-5)
    assert len(set(whole)) == STEPS
    saving = ("--save", tmp_path, "--save-every", 3)
    begun = adapter.run(shards, *line, *saving, stop_after=7)
    assert begun == whole[:7]
    for step in (3, 6):
        rest = adapter.run(shards, *line, "--resume", checkpoint(adapter.name, tmp_path, step))
        assert rest == whole[step:], f"resumed after {step} steps"
    adapter.run(shards, *line, *saving, "--resume", checkpoint(adapter.name, tmp_path, 6))
    last = "last.ckpt" if adapter.name == "train_lightning" else None
    end = tmp_path / last if last else checkpoint(adapter.name, tmp_path, STEPS)
    assert adapter.run(shards, *line, "--resume", end) == []  # there is nothing left to do


ONE_RANK = """
import json, os, pytest, runpy, sys, torch
import torch.distributed as dist
tests = runpy.run_path(sys.argv[1])
torch.set_num_threads(1)
tests["MODELS"]["tiny"] = tests["SMALL"]
before = dict(os.environ)  # which Lightning clears
for number, name in enumerate(tests["NAMES"]):
    os.environ.update(before, MASTER_PORT=sys.argv[3 + number])
    adapter = tests["Adapter"](name, pytest.MonkeyPatch())
    if name == "train_lightning":  # with GPUs it finds out by itself
        make = adapter.module.pl.Trainer
        adapter.module.pl.Trainer = lambda **options: make(
            accelerator="cpu", devices=2, strategy="ddp", **options)
    losses = adapter.run(sys.argv[2], "--batch-size", 2, "--accumulate", 2, "--steps", 4)
    print("losses", json.dumps(losses), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    tests["forget_accelerate"]()
"""


@pytest.mark.campaign
def test_two_ranks_learn_what_one_does_with_batches_twice_as_large(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = []
    for _ in NAMES:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(str(free.getsockname()[1]))
    common = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "1"}
    root = str(EXAMPLES.parent)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RANK, __file__, str(shards), *ports],
            env=os.environ
            | common
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    seen = []
    for rank in ranks:
        output = rank.communicate(timeout=200)[0]
        lines = [line for line in output.splitlines() if line.startswith("losses")]
        seen.append([json.loads(line.removeprefix("losses")) for line in lines])
        assert rank.returncode == 0
    for name, first in zip(NAMES, seen[0], strict=True):
        alone = Adapter(name, monkeypatch)
        one = alone.run(shards, "--batch-size", 4, "--accumulate", 2, "--steps", 4)
        assert first == pytest.approx(one, rel=1e-4), name


def test_a_wrong_path_ends_with_one_line(
    adapter: Adapter, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=f"{adapter.name}: .*/none: no such folder; give the one"):
        adapter.run(tmp_path / "none")
    with pytest.raises(SystemExit):
        adapter.run(shards, "--resume", tmp_path / "none")
    assert "none: there is no such checkpoint" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=adapter.name):
        adapter.run(shards, "--resume", tmp_path)
    with pytest.raises(SystemExit, match=r"pack 0"):
        adapter.run(shards, "--pack", 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [each for each in sys.modules if each.partition(".")[0] == PACKAGES[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(SystemExit, match=f"pip install {PACKAGES[name].replace('_', '-')}"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.campaign
def test_files_run_as_scripts_from_any_folder(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    scripts = {
        name: subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"],
            cwd=tmp_path,
            env=clean,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in (*NAMES, "huggingface_models")
    }
    for name, script in scripts.items():
        assert "--pack" in script.communicate(timeout=120)[0], name


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80
