"""Runs of a small reference model in this process, and processes that are ranks of a group."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from examples.vlm import train as program
from examples.vlm.measure.report import Report
from examples.vlm.model.config import ModelConfig, VisionConfig
from examples.vlm.options import parse
from examples.vlm.parallel.ranks import joined

SMALL = ModelConfig(
    vision=VisionConfig(width=16, layers=2, heads=2, patch=4, image_size=16, max_pixels=640),
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
)
PACKED = ("--pack", 300)


def fit(shards: Path, *arguments: Any) -> Report:
    line = [shards, "--num-workers", 0, "--device", "cpu", "--lr-steps", 9, *arguments]
    options = parse(list(map(str, line)), "")
    with joined(options.device) as ranks:
        return program.run(options, ranks)


def start_ranks(count: int, module: str, *arguments: Any) -> list[str]:
    """Run a module in some processes, each given its rank last; return what they print."""
    command = [sys.executable, "-m", f"tests.examples.{module}", *map(str, arguments)]
    root = Path(__file__).parents[2]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, cwd=root)
        for rank in range(count)
    ]
    try:
        printed = [rank.communicate(timeout=400)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * count
        return printed
    finally:
        for rank in ranks:
            rank.kill()


@contextmanager
def group_of(count: int, folder: str, rank: str) -> Iterator[None]:
    """Be a rank of a group of processes that meet in a folder."""
    torch.set_num_threads(1)
    method, limit = f"file://{folder}/store", timedelta(seconds=300)
    dist.init_process_group(
        "gloo", init_method=method, rank=int(rank), world_size=count, timeout=limit
    )
    yield
    dist.destroy_process_group()


def outcome(check: Callable[[], Any]) -> dict[str, Any]:
    """The error of a check, and its value."""
    try:
        return {"error": "", "value": check()}
    except Exception:
        return {"error": traceback.format_exc(), "value": None}
