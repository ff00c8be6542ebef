"""The stage that is named follows from the figures alone."""

import json

import pytest

from datapipe.profile.pipeline import find_bottleneck
from tests.case_files import table

from .figures import run

CASES = table("profile/bottlenecks")


@pytest.mark.parametrize("name", CASES)
def test_the_exhausted_resource_and_its_stage_are_named(name):
    case = CASES[name]
    paced = run(**case["run"], **case["paced"], step_time=0.1) if "paced" in case else None
    found = find_bottleneck(run(**case["run"]), paced, **case.get("how", {}))
    named, says = case["said"].split(": ", 1)
    assert f"{found.stage} {found.resource}" == named
    assert says in found.reason
    assert "unsaid" not in case or case["unsaid"] not in found.reason
    spoken = {"step": "the training step: ", "unknown": ""}
    assert str(found).startswith(spoken.get(found.stage, f"{found.stage}: "))
    assert found.level == case.get("level", "warn")
    fields = {"stage": found.stage, "resource": found.resource, "reason": found.reason}
    assert json.loads(json.dumps(found.to_dict())) == fields
