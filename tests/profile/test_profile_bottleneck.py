"""The stage that is named follows from the figures alone."""

import json
from typing import Any

import pytest

from datapipe.profile.pipeline import PipelineRun, find_bottleneck

from .figures import run

DECODES = {"read": (0.5, 0.5), "decode": (14.0, 13.5), "resize": (5.5, 5.4)}
COLLATES, SENDS = {"collate": (9.0, 9.0)}, {"transfer": (9.0, 0.5)}

CASES: dict[str, tuple[PipelineRun, dict[str, Any], str]] = {
    "decode": (run(DECODES), {}, "decode cpu: all 2 cores are busy, 69%"),
    # Another process has the cores: decoding waits for them too, but reads wait longer.
    "read, on a busy machine": (
        run({"read": (18.5, 0.3), "decode": (1.5, 0.9)}, others=17.0),
        *({}, "read storage: 91% of their time for storage"),
    ),
    "decode, on a busy machine": (
        run({"read": (1, 0.1), "decode": (12, 6), "resize": (7, 3)}, others=10.5),
        *({}, "decode cpu: with other processes"),
    ),
    "lock": (
        run({"read": (0.2, 0.2), "transform": (19, 9.5), "decode": (0.5, 0.2)}, gil=0.7),
        *({}, "transform lock: holds the interpreter's lock"),
    ),
    "transform in processes": (
        run({"transform": (19, 19), "decode": (0.5, 0.5)}, gil=0.0),
        *({"processes": True}, "transform cpu: all 2 cores are busy"),
    ),
    "threads hinder each other": (
        run({"read": (10, 9)}, {"plan": (0.5, 0.4)}, gil=0.1, idle=9.0),
        *({"scaling": 0.8}, "read lock: holds the interpreter's lock"),
    ),
    "collate": (
        run({"decode": (3, 3)}, COLLATES, idle=17.0),
        *({}, "collate caller: 90% of its time in collating batches, while workers wait 85%"),
    ),
    "transfer": (
        run({"decode": (3, 3)}, SENDS, idle=17.0),
        *({}, "transfer caller: the thread that takes the batches"),
    ),
    "no workers, slow storage": (
        run({"read": (9, 0.2), "decode": (0.5, 0.5)}, count=0),
        *({}, "read storage: the loop's own thread waits"),
    ),
    "a library with threads of its own": (
        run({"read": (0.1, 0.1), "decode": (19, 0.1)}, cpu=19.0),
        *({"threaded": "decode"}, "decode cpu: all 2 cores are busy, 99%"),
    ),
    "nothing stands out": (
        run({"read": (2, 1), "decode": (5, 3)}, idle=8.0),
        *({}, "decode unknown: nothing is exhausted"),
    ),
    "no stage": (run({}, {"plan": (0, 0), "collate": (0, 0)}), {}, "unknown unknown: "),
}


@pytest.mark.parametrize("name", CASES)
def test_the_exhausted_resource_and_its_stage_are_named(name):
    seen, how, said = CASES[name]
    found, (named, says) = find_bottleneck(seen, **how), said.split(": ")
    assert f"{found.stage} {found.resource}" == named
    assert says in found.reason
    assert str(found).startswith(f"{found.stage}: ") or found.stage == "unknown"
    assert found.level == "warn"
    assert json.loads(json.dumps(found.to_dict()))["stage"] == found.stage


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
def test_training_that_hardly_waits_is_the_limit(waited, samples, stage, level, bursts):
    found = find_bottleneck(run(DECODES), paced(waited, samples))
    assert (found.stage, found.level) == (stage, level)
    assert ("a larger prefetch_factor" in str(found)) == bursts
    room = f"the loader alone makes {10_000 / samples:.1f} times as many"
    assert (room in str(found)) == (stage == "step")
