"""Runs of a small reference model, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
