"""The stage that is named follows from the figures alone."""

import json
from pathlib import Path

import pytest
import yaml

from datapipe.profile.pipeline import find_bottleneck

from .figures import run

CASES = yaml.safe_load((Path(__file__).parent / "bottlenecks.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_the_exhausted_resource_and_its_stage_are_named(name):
    case = CASES[name]
    found = find_bottleneck(run(**case["run"]), **case.get("how", {}))
    named, says = case["said"].split(": ")
    assert f"{found.stage} {found.resource}" == named
    assert says in found.reason
    assert str(found).startswith(f"{found.stage}: ") or found.stage == "unknown"
    assert found.level == "warn"
    assert json.loads(json.dumps(found.to_dict()))["stage"] == found.stage


@pytest.mark.parametrize(
    ("waited", "samples", "stage", "level", "bursts"),
    [
        (0.002, 2_000, "step", "good", False),
        (0.015, 2_000, "step", "good", False),  # of each hand-over a moment, and room enough
        (0.015, 9_990, "decode", "bad", False),
        (0.3, 2_000, "decode", "bad", True),
        (0.3, 9_000, "decode", "bad", False),
    ],
)
def test_training_that_hardly_waits_is_the_limit(waited, samples, stage, level, bursts):
    decodes = CASES["decode"]["run"]
    paced = run(**decodes, waited=10 * waited, samples=samples, step_time=0.1)
    found = find_bottleneck(run(**decodes), paced)
    assert (found.stage, found.level) == (stage, level)
    assert ("a larger prefetch_factor" in str(found)) == bursts
    room = f"the loader alone makes {10_000 / samples:.1f} times as many"
    assert (room in str(found)) == (stage == "step")
