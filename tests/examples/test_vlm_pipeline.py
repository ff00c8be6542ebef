"""Two ranks with the layers between them learn what one process learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from examples.vlm.parallel.ranks import Ranks

from .test_vlm_ranks_together import COMMON, Found, together
from .vlm_runs import PACKED, fit

pytestmark = pytest.mark.usefixtures("small_model")

TWO = Ranks(0, 2, torch.device("cpu"))
PIPELINE = ("--parallel", "pipeline")
ACCUMULATED = (*PACKED, "--steps", 4, "--accumulate", 3)
RUNS: dict[str, tuple[Any, ...]] = {
    "one batch": (*PACKED, "--steps", 4),
    "micro-batches": ACCUMULATED,
    "labels": (*PACKED, "--steps", 4, "--accumulate-tokens", 150, "--clip", 0.1),
    "two packs": (*PACKED, "--steps", 3, "--batch-size", 2, "--native"),
    "global": (*PACKED, "--steps", 6, "--global-batch-size", 3),
    "recomputed": (*ACCUMULATED, "--recompute", "sequential:2"),
    "frozen": (*ACCUMULATED, "--freeze-vision", "--dropout", 0.0),
    "evaluated": (*ACCUMULATED, "--evaluate", "SHARDS", "--evaluate-every", 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


def line(shards: Path, arguments: tuple[Any, ...]) -> list[str]:
    return [str(shards if each == "SHARDS" else each) for each in arguments]


@pytest.fixture(scope="module")
def two(shards: Path, folder: Path) -> list[Found]:
    jobs = {
        name: line(shards, ("SHARDS", *COMMON, *PIPELINE, *arguments))
        for name, arguments in RUNS.items()
    }
    return together(2, jobs, folder)


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_learn_what_one_process_learns(shards: Path, two: list[Found], name: str) -> None:
    wanted = fit(shards, *line(shards, RUNS[name]))
    for rank in two:
        assert rank[name].get("losses") == pytest.approx(wanted.losses, rel=1e-5), rank[name]
