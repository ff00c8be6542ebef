"""What a loop's figures say of it."""

import re
from dataclasses import fields

import pytest

from datapipe.diagnosis.loader_figures import LoaderFigures
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.diagnosis.loop_figures import DatasetShare, LoopFigures, SampledSteps
from datapipe.diagnosis.loop_rules import judge
from datapipe.diagnosis.step_figures import RankTimes, StepRoofline
from datapipe.loader.metrics.meter import Reading, Stage
from tests.case_files import table

LOOPS, SENTENCES, LOADERS = (
    table(f"diagnosis/{name}") for name in ("loops", "sentences", "loaders")
)


def figures(**values):
    """Figures of a loop; those of recorded steps are given by their names."""
    shares = {name: values.pop(name, 0.0) for name in ("wait", "transfer", "rest")}
    names = {field.name for field in fields(SampledSteps)}
    recorded = {name: values.pop(name) for name in names & values.keys()}
    for name, of in (("ranks", ranks), ("roofline", roofline)):
        if name in recorded:
            recorded[name] = of(**recorded[name])
    if "datasets" in values:
        values["datasets"] = shares_of(**values["datasets"])
    return LoopFigures(
        **{"step": 1 - sum(shares.values()), "turns": 100} | shares | values,
        recorded=SampledSteps(**{"steps": 3, "operators": 0.9} | recorded),
    )


def ranks(**values):
    usual = {"exchange": 0.0, "waiting": 0.0, "holding": 0.0, "late": 0.02, "for_data": 0.0}
    return RankTimes(**usual | {"slowest": 1} | values)


def roofline(**values):
    usual = {"memory": 0.0, "arithmetic": 0.0, "at_peak": 0.01, "moved": 0.02, "seconds": 0.05}
    return StepRoofline(**usual | {"flops": 10**9, "bytes": 10**8} | values)


def shares_of(of, samples=10_000, **more):
    return tuple(
        DatasetShare(name=name, samples=round(n * samples), tokens=1, share=n, planned=plan, **more)
        for name, (n, plan) in of.items()
    )


@pytest.mark.parametrize(
    ("said", "name"), [(said, name) for said, cases in LOOPS.items() for name in cases]
)
def test_the_verdict_follows_from_the_figures(said, name):
    verdict = judge(figures(**LOOPS[said][name]))
    assert f"{verdict.level} {verdict.kind}" == said
    assert verdict.actions
    assert verdict.sentence[-1] not in ".;,"
    assert str(verdict).startswith(verdict.sentence)


@pytest.mark.parametrize(("given", "said"), SENTENCES)
def test_the_sentence_names_the_cause_with_its_figures(given, said):
    assert re.search(said, judge(figures(**given)).sentence)


def test_the_actions_name_the_way_to_the_lines_or_the_remedies():
    def actions(**given):
        return "\n".join(judge(figures(**given)).actions)

    assert "set_sync_debug_mode" in actions(synchronisation=0.5)
    unknown = actions(exchange=0.6, beside=0.1)
    for word in ("compare this report on all ranks", "no_sync", "bucket_cap_mb", "comm_hook"):
        assert word in unknown
    assert "compare this report" not in actions(exchange=0.6, ranks={"exchange": 0.6})


def loader(caller=None, workers=2, idle=0.1, **slow):
    """A loader that was waited for; of each slow stage its seconds, and the share on a core."""
    usual = {"read": (1.0, 1.0), "decode": (4.0, 1.0), "resize": (2.0, 1.0)}
    times = usual | {"transform": (0.5, 1.0)} | slow
    called = {name: Stage(seconds=seconds, cpu=seconds) for name, seconds in (caller or {}).items()}
    return Reading(
        seconds=10.0,
        waited=8.0,
        samples=100,
        batches=10,
        workers=workers,
        idle=idle,
        stages={name: Stage(seconds=s, cpu=s * busy) for name, (s, busy) in times.items()},
        caller=called,
    )


@pytest.mark.parametrize("name", LOADERS)
def test_the_stage_follows_from_what_the_loader_says(name):
    case = LOADERS[name]
    given = {"reading": loader(**case["loader"]), "processes": case.get("processes", False)}
    limit = find_limit(LoaderFigures(**given, in_loop=True))
    assert limit.stage == case["stage"]
    assert case["action"] in "\n".join(limit.actions[:2])
    advised = [action for action in limit.actions if "workers='processes'" in action]
    assert len(advised) <= (not given["processes"])
    verdict = judge(figures(wait=0.5, limit=limit))
    assert verdict.kind == "data"
    assert limit.reason in verdict.sentence


def test_a_loader_of_which_nothing_was_seen_has_no_stage_to_name():
    nothing = Reading(seconds=10.0, workers=2, waited=8.0)
    assert find_limit(LoaderFigures(reading=nothing, in_loop=True)).stage == "unknown"
