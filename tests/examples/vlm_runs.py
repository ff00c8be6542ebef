"""Runs of a small reference model in this process, and processes that are ranks of a group."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from examples.vlm import train as program
from examples.vlm.measure.report import Report
from examples.vlm.model.config import ModelConfig, VisionConfig
from examples.vlm.options import parse
from examples.vlm.parallel.ranks import joined
from tests.ports import free_port

SMALL = ModelConfig(
    vision=VisionConfig(width=32, layers=2, heads=2, patch=4, image_size=16, max_pixels=640),
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


def environment(**more: Any) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(each) for name, each in more.items()}


def torchrun(*command: Any, **variables: Any) -> subprocess.Popen[str]:
    """Start a module in two processes, as users do."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return subprocess.Popen(
        [*launcher, "--nproc-per-node=2", "-m", *map(str, command)],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_ranks(count: int, module: str, *arguments: Any) -> None:
    """Run a module in processes that are the ranks of a group."""
    command = [sys.executable, "-m", f"tests.examples.{module}", *map(str, arguments)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": count}
    ranks = [
        subprocess.Popen(command, env=environment(RANK=rank, **group)) for rank in range(count)
    ]
    try:
        assert [rank.wait(timeout=900) for rank in ranks] == [0] * count
    finally:
        for rank in ranks:
            rank.kill()
