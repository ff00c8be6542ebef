"""The stage that is named follows from the figures alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from datapipe.profile.pipeline import PipelineRun, find_bottleneck

from .figures import run

DECODES = {"read": (0.5, 0.5), "decode": (14.0, 13.5), "resize": (5.5, 5.4)}
WAITS_FOR_READS = {"read": (18.5, 0.3), "decode": (1.0, 1.0)}
COLLATES = {"collate": (9.0, 9.0)}


@pytest.mark.parametrize(
    ("seen", "how", "stage", "resource", "says"),
    [
        pytest.param(run(DECODES), {}, "decode", "cpu", "all 2 cores are busy, 69%", id="decode"),
        pytest.param(
            run(DECODES, cores=16), {}, "decode", "cpu", "each worker is busy", id="few workers"
        ),
        pytest.param(
            run({"read": (1, 1), "decode": (3, 3), "resize": (16, 15)}),
            {},
            *("resize", "cpu", "go"),
            id="resize",
        ),
        pytest.param(
            run(WAITS_FOR_READS), {}, "read", "storage", "93% of their time for storage", id="read"
        ),
        pytest.param(
            # Another process has the cores: decoding waits for them too, but reads wait longer.
            run({"read": (18.5, 0.3), "decode": (1.5, 0.9)}, others=17.0),
            {},
            *("read", "storage", "for storage"),
            id="read, on a busy machine",
        ),
        pytest.param(
            run({"read": (1, 0.1), "decode": (12, 6), "resize": (7, 3)}, others=10.5),
            {},
            *("decode", "cpu", "with other processes"),
            id="decode, on a busy machine",
        ),
        pytest.param(
            run({"read": (0.2, 0.2), "transform": (19, 9.5), "decode": (0.5, 0.2)}, gil=0.7),
            {},
            *("transform", "lock", "holds the interpreter's lock"),
            id="lock",
        ),
        pytest.param(
            run({"transform": (19, 19), "decode": (0.5, 0.5)}, gil=0.0),
            {"processes": True},
            *("transform", "cpu", "all 2 cores are busy"),
            id="transform in processes",
        ),
        pytest.param(
            run({"transform": (19, 0.1), "decode": (0.5, 0.5)}),
            {},
            *("transform", "wait", "without using a core"),
            id="transform waits",
        ),
        pytest.param(
            run({"read": (10, 9)}, {"plan": (0.5, 0.4)}, gil=0.1, idle=9.0),
            {"scaling": 0.8},
            *("read", "lock", "holds the interpreter's lock"),
            id="threads hinder each other",
        ),
        pytest.param(
            run({"decode": (3, 3)}, COLLATES, idle=17.0),
            {},
            *("collate", "caller", "90% of its time in collating batches, while workers wait 85%"),
            id="collate",
        ),
        pytest.param(
            run({"decode": (3, 3)}, {"transfer": (9.0, 0.5)}, idle=17.0),
            {},
            *("transfer", "caller", "the thread that takes the batches"),
            id="transfer",
        ),
        pytest.param(
            run({"decode": (8, 8), "read": (1.5, 1.5)}, count=0, cores=16),
            {},
            *("decode", "cpu", "the caller's thread is busy"),
            id="no workers",
        ),
        pytest.param(
            run({"read": (9, 0.2), "decode": (0.5, 0.5)}, count=0),
            {},
            *("read", "storage", "the loop's own thread waits"),
            id="no workers, slow storage",
        ),
        pytest.param(
            run({"read": (0.1, 0.1), "decode": (19, 0.1)}, cpu=19.0),
            {"threaded": "decode"},
            *("decode", "cpu", "all 2 cores are busy, 99%"),
            id="a library with threads of its own",
        ),
        pytest.param(
            run({"read": (2, 1), "decode": (5, 3)}, idle=8.0),
            {},
            *("decode", "unknown", "nothing is exhausted"),
            id="nothing stands out",
        ),
    ],
)
def test_the_exhausted_resource_and_its_stage_are_named(
    seen: PipelineRun, how: dict[str, Any], stage: str, resource: str, says: str
) -> None:
    found = find_bottleneck(seen, **how)
    assert (found.stage, found.resource) == (stage, resource)
    assert says in found.reason
    assert str(found).startswith(f"{stage}: ")
    assert found.level == "warn"
    assert json.loads(json.dumps(found.to_dict()))["stage"] == stage


def paced(waited: float, samples: int) -> PipelineRun:
    return run(DECODES, waited=10 * waited, samples=samples, step_time=0.1)


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
def test_training_that_hardly_waits_is_the_limit(
    waited: float, samples: int, stage: str, level: str, bursts: bool
) -> None:
    found = find_bottleneck(run(DECODES), paced(waited, samples))
    assert (found.stage, found.level) == (stage, level)
    assert ("a larger prefetch_factor" in str(found)) == bursts


def test_how_much_room_a_loader_has_is_said() -> None:
    found = find_bottleneck(run(DECODES), paced(0.002, 2_000))
    assert "the loader alone makes 5.0 times as many" in str(found)


def test_a_run_without_any_stage_is_not_explained() -> None:
    assert find_bottleneck(run({}, {"plan": (0, 0), "collate": (0, 0)})).stage == "unknown"
