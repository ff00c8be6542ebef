"""Ranks with the layers between them learn what one process learns."""

from __future__ import annotations

from typing import Any

import pytest

from examples.vlm.parallel.pipeline import keep

from .test_vlm_model import make_model
from .test_vlm_ranks_together import COMMON, together
from .vlm_runs import PACKED, fit

pytestmark = pytest.mark.usefixtures("small_model")

THREE = (*PACKED, "--accumulate", 3)
"""Three micro-batches a step."""

RUNS: dict[str, tuple[Any, ...]] = {
    "one pack": (*PACKED, "--steps", 4),
    "micro-batches": (*THREE, "--steps", 4, "--clip", 0.1),
    "labels": (*PACKED, "--steps", 4, "--accumulate-tokens", 150),
    "epochs end steps": (*PACKED, "--steps", 6, "--global-batch-size", 3),
    "two packs of native images": (*PACKED, "--steps", 3, "--batch-size", 2, "--native"),
    "recomputed": (*THREE, "--steps", 3, "--recompute", "sequential:2"),
    "frozen": (*THREE, "--steps", 3, "--freeze-vision"),
    "adapters": (*THREE, "--steps", 3, "--lora", 2),
    "resident": (*THREE, "--steps", 3, "--resident", "100MB"),
    "evaluated": (*THREE, "--steps", 4, "--evaluate", "SHARDS", "--evaluate-every", 2),
}
SAVED = (*THREE, "--steps", 2, "--save", "FOLDER")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pipeline")


@pytest.fixture(scope="module")
def lines(shards, folder):
    known = {"SHARDS": shards, "FOLDER": folder / "saved", "FILE": folder / "run.pt"}
    return lambda arguments: [str(known.get(each, each)) for each in arguments]


@pytest.fixture(scope="module")
def two(lines, folder):
    jobs = RUNS | {"saved": SAVED}
    start = ("SHARDS", *COMMON, "--parallel", "pipeline")
    return together(2, {name: lines((*start, *job)) for name, job in jobs.items()}, folder)


@pytest.fixture
def alone(shards, lines):
    """A run in one process."""
    return lambda *arguments: fit(shards, *lines(arguments))


@pytest.mark.campaign
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_learn_what_one_process_learns(two, alone, name):
    if name == "adapters":
        pytest.importorskip("peft")
    wanted = alone(*RUNS[name])
    for rank in two:
        assert rank[name].get("losses") == pytest.approx(wanted.losses, rel=1e-5), rank[name]
        assert rank[name]["evaluations"] == pytest.approx(
            [each.loss for each in wanted.evaluations], rel=1e-5
        )
    parameters = [rank[name]["parameters"] for rank in two]
    assert sum(parameters) == wanted.memory["parameters"]
    assert min(parameters) > 0


@pytest.mark.campaign
def test_a_pipeline_goes_on_as_one_process_and_as_one_of_three_ranks(two, alone, lines, folder):
    losses = alone(*THREE, "--steps", 6).losses
    assert two[0]["saved"]["losses"] == pytest.approx(losses[:2], rel=1e-5)
    rest = alone(*THREE, "--steps", 4, "--resume", "FOLDER", "--save", "FILE").losses
    assert rest == pytest.approx(losses[2:4], rel=1e-5)
    start = ("SHARDS", *COMMON, "--parallel", "pipeline", *THREE, "--steps", 6, "--resume")
    jobs = {name: lines((*start, name)) for name in ("FOLDER", "FILE")}
    for rank in together(3, jobs, folder):
        assert rank["FOLDER"]["losses"] == pytest.approx(losses[2:], rel=1e-5)
        assert rank["FILE"]["losses"] == pytest.approx(losses[4:], rel=1e-5)


def test_every_part_of_the_model_is_on_one_rank():
    whole = make_model("split")
    parts = []
    for number in range(3):
        model = make_model("split")
        keep(model, number, 3)
        parts += list(model.state_dict())
    assert sorted(parts) == sorted(whole.state_dict())
    layers = len(whole.language.blocks)
    with pytest.raises(ValueError, match=f"{layers} layers do not fill {layers + 2} ranks"):
        keep(whole, 0, layers + 2)
