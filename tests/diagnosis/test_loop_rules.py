"""What a loop's figures say of it."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from datapipe.diagnosis.loader_figures import LoaderFigures
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.diagnosis.loop_figures import LoopFigures, SampledSteps
from datapipe.diagnosis.loop_rules import judge
from datapipe.diagnosis.rank_times import RankTimes
from datapipe.diagnosis.step_roofline import StepRoofline
from datapipe.loader.metrics.meter import Reading, Stage


def figures(**values: Any) -> LoopFigures:
    """Figures of a loop; those of recorded steps are given by their names."""
    shares = {name: values.pop(name, 0.0) for name in ("wait", "transfer", "rest")}
    names = {field.name for field in fields(SampledSteps)}
    recorded = {name: values.pop(name) for name in names & values.keys()}
    return LoopFigures(
        **{"step": 1 - sum(shares.values()), "turns": 100} | shares | values,
        recorded=SampledSteps(**{"steps": 3, "operators": 0.9} | recorded),
    )


def ranks(**values: Any) -> RankTimes:
    usual = {"exchange": 0.0, "waiting": 0.0, "holding": 0.0, "late": 0.02, "for_data": 0.0}
    return RankTimes(**usual | {"slowest": 1} | values)


def roofline(**values: Any) -> StepRoofline:
    usual = {"memory": 0.0, "arithmetic": 0.0, "at_peak": 0.01, "moved": 0.02, "seconds": 0.05}
    return StepRoofline(**usual | {"flops": 10**9, "bytes": 10**8} | values)


CASES: dict[str, dict[str, LoopFigures]] = {
    "good compute": {
        "a loader that keeps up": figures(wait=0.002),
        "reading that takes next to nothing": figures(synchronisation=0.02),
        "exchange that compute hides": figures(exchange=0.05, beside=0.6),
        "ranks that differ a little": figures(ranks=ranks(waiting=0.05)),
        "a busy GPU, in operators that neither explains": figures(
            busy=0.97, operators=0.9, roofline=roofline(memory=0.2, arithmetic=0.2)
        ),
        "operators that arithmetic limits": figures(roofline=roofline(memory=0.2, arithmetic=0.7)),
        "a loop that does not say what its step is": figures(rest=0.95, wait=0.0, marked=False),
        "the host waits while the device has work": figures(wait=0.4, idle=0.001),
        "a copy that is hidden by other work": figures(transfer=0.3, device_transfer=0.0),
        "a busy GPU, whatever the host waits for": figures(
            busy=0.97, wait=0.3, idle=0.005, synchronisation=0.8
        ),
    },
    "warn compute": {
        "waiting more than it should, and less than it must not": figures(wait=0.05),
    },
    "bad data": {
        "a slow loader": figures(wait=0.4),
        "a slow copy and a slower loader": figures(transfer=0.2, wait=0.5),
        "others wait for this rank, which waits for data": figures(
            wait=0.5, ranks=ranks(holding=0.5, for_data=1.0)
        ),
        "the device waits": figures(wait=0.4, idle=0.35),
    },
    "bad transfer": {
        "a slow copy": figures(transfer=0.3),
        "a slow loader and a slower copy": figures(transfer=0.5, wait=0.2),
        "a copy that only the device's clock sees": figures(device_transfer=0.3),
    },
    "bad synchronisation": {
        "a value read in every step": figures(synchronisation=0.6),
        "a value read, and a GPU without work": figures(busy=0.5, idle=0.01, synchronisation=0.7),
    },
    "bad communication": {
        "exchange with other ranks": figures(exchange=0.7),
        "a GPU busy with exchange that is not hidden": figures(busy=0.99, exchange=0.4, beside=0.2),
        "exchange, equal on all ranks": figures(
            exchange=0.7, ranks=ranks(exchange=0.68, waiting=0.02)
        ),
        "exchange and operators that memory limits": figures(
            exchange=0.3, roofline=roofline(memory=0.6)
        ),
    },
    "bad straggler": {
        "waiting for a slower rank, which looks like exchange": figures(
            exchange=0.7, ranks=ranks(exchange=0.1, waiting=0.6)
        ),
        "others wait for this rank": figures(ranks=ranks(holding=0.5)),
        "a GPU that spins as it waits for another rank": figures(
            busy=1.0, exchange=0.6, ranks=ranks(exchange=0.1, waiting=0.5)
        ),
    },
    "warn memory": {
        "operators that memory limits": figures(roofline=roofline(memory=0.7)),
        "a busy GPU, in operators that memory limits": figures(
            busy=0.98, roofline=roofline(memory=0.7)
        ),
    },
    "warn unknown": {
        "operators that neither memory nor arithmetic explains": figures(
            operators=0.84, roofline=roofline(memory=0.03, arithmetic=0.05)
        ),
        "too few steps": figures(turns=2, wait=0.9),
    },
    "warn host": {
        "a step that only sleeps": figures(operators=0.01),
        "a GPU that has little to do, in operators that memory limits": figures(
            busy=0.4, roofline=roofline(memory=0.7)
        ),
        "a GPU that has little to do": figures(busy=0.4),
    },
    "bad loop": {
        "checkpoints in the loop": figures(rest=0.6),
    },
    "warn synchronisation": {
        "a value read, and a GPU that nobody asks": figures(idle=0.01, synchronisation=0.7),
    },
}
"""Figures of loops, by what is said of them."""


@pytest.mark.parametrize(
    ("said", "name"), [(said, name) for said, cases in CASES.items() for name in cases]
)
def test_the_verdict_follows_from_the_figures(said, name):
    verdict = judge(CASES[said][name])
    assert f"{verdict.level} {verdict.kind}" == said
    assert verdict.actions
    assert verdict.sentence[-1] not in ".;,"
    assert str(verdict).startswith(verdict.sentence)


@pytest.mark.parametrize("losses", range(1, 20))
def test_the_largest_loss_is_named(losses):
    share = losses / 20
    verdict = judge(figures(wait=share, synchronisation=1 - share))
    assert verdict.kind == ("data" if share > 0.5 else "synchronisation") or share == 0.5


def test_the_operator_that_waits_is_named_with_the_way_to_its_lines():
    verdict = judge(figures(synchronisation=0.5, waiter="aten::item"))
    assert verdict.sentence == (
        "synchronisation-bound: for 50% of the time Python waits for values from the device, "
        "mostly in aten::item"
    )
    assert "set_sync_debug_mode" in "\n".join(verdict.actions)


def test_exchange_beside_operators_is_called_hidden_on_a_gpu_alone():
    on_cpu = judge(figures(exchange=0.26, beside=0.43)).sentence
    assert "26% to 69% of the time" in on_cpu
    assert "hidden" not in on_cpu
    on_gpu = judge(figures(exchange=0.26, beside=0.43, busy=0.98)).sentence
    assert "26% of the time" in on_gpu
    assert "43% is hidden" in on_gpu


def test_the_operator_that_memory_limits_is_named():
    found = judge(figures(roofline=roofline(memory=0.7, longest="aten::mul_")))
    assert "70% of a step is what its operators need to move their bytes" in found.sentence
    assert "mostly aten::mul_" in found.sentence


def test_a_verdict_does_not_contradict_its_own_figures():
    given = roofline(memory=0.03, arithmetic=0.05, seconds=0.352, moved=0.0105, at_peak=0.0164)
    verdict = judge(figures(operators=0.84, roofline=given))
    assert "nothing that was measured explains most of a step" in verdict.sentence
    assert "352 ms would take 10.5 ms" in verdict.sentence


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ranks(waiting=0.4), "waits for rank 1, whose steps take 20 ms longer"),
        (ranks(waiting=0.4, for_data=0.9), "waits for rank 1, which gets its batches 20 ms later"),
        (ranks(waiting=0.4, slowest=None), "waits for slower ones.*changes from step to step"),
        (ranks(holding=0.4), r"the other ranks wait for this one \(rank 1\)"),
    ],
)
def test_the_slow_rank_is_named_with_its_cause(given, said):
    verdict = judge(figures(exchange=given.waiting + 0.1, ranks=given))
    assert verdict.kind == "straggler"
    assert re.search(said, verdict.sentence)


def test_exchange_is_answered_by_accumulation_buckets_and_compression():
    remedies = "\n".join(judge(figures(exchange=0.6, beside=0.1)).actions)
    for word in ("compare this report on all ranks", "no_sync", "bucket_cap_mb", "comm_hook"):
        assert word in remedies
    known = judge(figures(exchange=0.6, ranks=ranks(exchange=0.6)))
    assert "compare this report" not in "\n".join(known.actions)


def loader(caller: Any = None, workers: int = 2, idle: float = 0.1, **slow: Any) -> Reading:
    """A loader that was waited for; of each slow stage its seconds, and the share on a core."""
    times = {
        "read": (1.0, 1.0),
        "decode": (4.0, 1.0),
        "resize": (2.0, 1.0),
        "transform": (0.5, 1.0),
    }

    def stages(given: dict[str, Any]) -> dict[str, Stage]:
        return {name: Stage(seconds=s, cpu=s * busy) for name, (s, busy) in given.items()}

    waited = {"seconds": 10.0, "waited": 8.0, "samples": 100, "batches": 10}
    return Reading(
        **waited,
        workers=workers,
        idle=idle,
        stages=stages(times | slow),
        caller=stages({name: (s, 1.0) for name, s in (caller or {}).items()}),
    )


STAGES: dict[str, tuple[Any, str, str]] = {
    "storage": (loader(read=(12.0, 0.02)), "read", "num_workers"),
    "decode": (loader(decode=(12.0, 1.0)), "decode", "--max-side"),
    "resize": (loader(resize=(12.0, 1.0)), "resize", "uint8"),
    "transform": (loader(transform=(12.0, 1.0)), "transform", "packing"),
    "a lock": (loader(transform=(14.0, 0.4)), "transform", "workers='processes'"),
    "tokenize": (loader(tokenize=(12.0, 1.0)), "tokenize", "processes"),
    "collate": (loader({"collate": 7.0, "transfer": 0.1}, idle=12.0), "collate", "fewer fields"),
    "transfer": (loader({"collate": 0.3, "transfer": 7.0}, idle=12.0), "transfer", "uint8"),
    "too little begun ahead": (loader(idle=12.0), "prefetch", "prefetch_factor"),
    "no workers": (loader({"collate": 0.2}, workers=0, idle=0.0), "decode", "num_workers"),
    "no workers, slow collating": (
        *(loader({"collate": 20.0}, workers=0, idle=0.0), "collate", "num_workers"),
    ),
    "nothing seen": (Reading(seconds=10.0, workers=2, waited=8.0), "unknown", ""),
}


def test_threads_that_hold_the_lock_while_batches_are_sent_are_to_be_fewer_or_processes():
    reading = loader({"transfer": 7.0}, workers=16, idle=12.0)
    advice = {
        processes: find_limit(LoaderFigures(reading=reading, in_loop=True, processes=processes))
        for processes in (False, True)
    }
    assert "fewer `num_workers`, or `workers='processes'`" in advice[False].actions[0]
    assert "uint8" in advice[True].actions[0]


@pytest.mark.parametrize("name", STAGES)
def test_the_stage_follows_from_what_the_loader_says(name):
    reading, expected, action = STAGES[name]
    limit = find_limit(LoaderFigures(reading=reading, in_loop=True))
    assert limit.stage == expected
    assert action in "\n".join(limit.actions[:2])
    verdict = judge(figures(wait=0.5, limit=limit))
    assert verdict.kind == "data"
    assert limit.reason in verdict.sentence
