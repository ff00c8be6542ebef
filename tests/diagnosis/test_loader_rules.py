"""The limit that is named is the one that was planted."""

import json
from pathlib import Path

import pytest
import yaml

from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.loader.metrics.meter import Reading, Stage

LIMITS = yaml.safe_load((Path(__file__).parent / "limits.yaml").read_text("utf-8"))


def figures(cpu, others=0.0, gil=0.02, read=0, workers=4, stages=(), **more):
    """Figures of a loader as a case gives them."""
    usage = {"cpu": 10 * cpu, "cores": 4, "others": 10 * others, "gil": gil, "memory": 1}
    timed = {name: Stage(seconds=s, cpu=on_core) for name, (s, on_core) in dict(stages).items()}
    return LoaderFigures(
        usage=Usage(seconds=10.0, read=read, **usage),
        reading=Reading(seconds=10.0, workers=workers, stages=timed),
        **more,
    )


@pytest.mark.parametrize("case", LIMITS, ids=[case["said"] for case in LIMITS])
def test_a_planted_limit_is_named_with_what_was_seen(case):
    given = dict(case)
    named, says = given.pop("said").split(": ")
    limit = find_limit(figures(**given))
    assert f"{limit.resource} {limit.stage}" == named
    assert says in limit.reason
    assert json.loads(json.dumps(limit.to_dict()))["resource"] == limit.resource
