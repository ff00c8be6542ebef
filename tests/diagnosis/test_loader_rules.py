"""The limit that is named is the one that was planted."""

import json

import pytest

from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.loader.metrics.meter import Reading, Stage


def stages(**times):
    """Stages of so many seconds, and of so many on a core."""
    return {name: Stage(seconds=seconds, cpu=cpu) for name, (seconds, cpu) in times.items()}


def seen(cpu, *, others=0.0, gil=0.02, **more):
    """Ten seconds on four cores, of which `cpu` were used all the time."""
    usage = {"cpu": 10 * cpu, "cores": 4, "others": 10 * others, "gil": gil, "memory": 1}
    reading = {"workers": more.pop("workers", 4), "stages": more.pop("stages", {})}
    return LoaderFigures(
        usage=Usage(seconds=10.0, read=more.pop("read", 0), **usage),
        reading=Reading(seconds=10.0, **reading),
        **more,
    )


DECODES = stages(read=(2.0, 0.5), decode=(35.0, 28.0), collate=(3.0, 3.0))
READS = stages(read=(36.0, 0.5), decode=(4.0, 4.0))
SENDS = stages(read=(1.0, 0.5), transform=(34.0, 0.5), decode=(4.0, 4.0))
BUSY = {"caller_cpu": 9.9, "workers": 0}
"""One thread that does it all."""

CASES: list[tuple[LoaderFigures, str]] = [
    (seen(3.9, stages=DECODES), "cpu decode: all 4 cores are busy, 89% of the loader's CPU"),
    (seen(3.9), "cpu unknown: all 4 cores are busy"),
    (seen(2.0, others=1.9), "cpu unknown: 1.9 of them with other processes"),
    (seen(1.05, gil=0.8), "lock unknown: Python code holds the interpreter's lock"),
    (seen(1.05, gil=0.8, stages=DECODES), "lock decode: 80% of its time"),
    (seen(1.05, gil=0.8, stages=SENDS), "lock decode: 80% of its time"),  # though workers wait
    (seen(3.95, gil=0.8, processes=True), "cpu unknown: all 4 cores"),
    (seen(0.4, stages=READS), "storage read: workers wait 89% of their time for storage"),
    (seen(0.4, read=3_000_000_000), "storage read: 300 MB/s come from storage"),
    (seen(0.4, stages=SENDS), "wait transform: without using a core"),
    (seen(0.4), "unknown unknown: waits for something else"),
    (seen(2.0, waited=0.004), "step step: waits 0.4% of its time"),
    (seen(3.9, waited=0.3, stages=DECODES), "cpu decode: all 4 cores"),
    (seen(2.0, caller_cpu=9.8), "caller unknown: the thread that takes the batches is busy"),
    (seen(1.0, workers=1, stages=DECODES), "cpu decode: each worker is busy, and cores are left"),
    (seen(1.0, **BUSY), "cpu unknown: the caller's thread is busy"),
    (seen(1.0, gil=0.7, **BUSY), "cpu unknown: the caller's thread is busy"),
]


@pytest.mark.parametrize(("case", "said"), CASES)
def test_a_planted_limit_is_named_with_what_was_seen(case, said):
    limit, (named, says) = find_limit(case), said.split(": ")
    assert f"{limit.resource} {limit.stage}" == named
    assert says in limit.reason
    assert json.loads(json.dumps(limit.to_dict()))["resource"] == limit.resource
