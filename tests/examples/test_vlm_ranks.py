"""Rules for several ranks that one process can test."""

import signal
import subprocess
from pathlib import Path

import pytest
import torch

from examples.vlm import train as program
from examples.vlm.measure.report import RankFigures, spread
from examples.vlm.options import parse
from examples.vlm.parallel.connect import Parallel, bucket_of, parallel_of
from examples.vlm.parallel.places import Place, Seen, kill_silent, notice_after, unfinished, verdict
from examples.vlm.parallel.ranks import Ranks, differences
from examples.vlm.parallel.watch import broke

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"
DATA, EXCHANGE = "waiting for data", "in the exchange"


def rank(number, stage, count, age, *, silent=0.5, gone=False):
    place = Place(f"host{number}", 100 + number, "", step=7, stage=stage, count=count, age=age)
    return Seen(number, place, silent=silent, gone=gone)


ALIVE = rank(0, EXCHANGE, 9, 1)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            [rank(0, EXCHANGE, 9, 40), rank(1, DATA, 7, 41), rank(2, EXCHANGE, 9, 40)],
            "rank 1 (host1, process 101) has been waiting for data (step 7) for 42 s",
        ),
        (
            [rank(number, EXCHANGE, 9, 40) for number in range(3)],
            "all ranks have been in the exchange (step 7) for 40 s: none is behind",
        ),
        (
            [rank(0, DATA, 7, 40), rank(1, EXCHANGE, 9, 40), rank(2, DATA, 7, 40)],
            "rank 0 (host0, process 100) and 1 more have been waiting for data",
        ),
        # One that still moves keeps the run alive.
        ([rank(0, EXCHANGE, 9, 400), rank(1, DATA, 7, 2)], None),
        ([rank(0, EXCHANGE, 9, 20), rank(1, DATA, 7, 20)], None),
        (
            [ALIVE, rank(1, DATA, 7, 1, silent=31)],
            "rank 1 (host1, process 101) has given no sign of life for 31 s",
        ),
        (
            [ALIVE, rank(1, DATA, 7, 1, gone=True)],
            "rank 1 (host1, process 101) is gone, last seen waiting for data",
        ),
        ([ALIVE, rank(1, "finished", 12, 99, gone=True)], None),
    ],
)
def test_the_rank_that_others_wait_for_is_named(seen, said):
    found = verdict(seen, 30)
    assert found is None if said is None else found is not None and found.startswith(said)


def test_processes_that_are_stopped_are_killed_on_this_machine_alone():
    """SIGTERM of torchrun reaches no stopped process, and it waits for half a minute."""
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(4)]
    try:
        places = [
            Place("host", sleeper.pid, machine, stage=stage)
            for sleeper, machine, stage in zip(
                sleepers,
                ("here", "here", "there", "here"),
                (DATA, DATA, DATA, "finished"),
                strict=True,
            )
        ]
        sleepers[0].send_signal(signal.SIGSTOP)
        seen = [
            Seen(number, place, silent=0.5 if number == 1 else 9.0, gone=False)
            for number, place in enumerate(places)
        ]
        kill_silent(seen, "here", 3.0)
        assert sleepers[0].wait(timeout=300) == -signal.SIGKILL
        assert [sleeper.poll() for sleeper in sleepers[1:]] == [None] * 3
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_notices_come_after_more_than_the_usual_time_and_name_none_that_is_finished():
    assert unfinished([ALIVE, rank(1, "finished", 12, 99, silent=99)]) == [ALIVE]
    assert notice_after(Place("", 0, "", step=1, seconds=0.1)) == 60
    assert notice_after(Place("", 0, "", step=9, seconds=0.1)) == 10
    assert notice_after(Place("", 0, "", step=9, seconds=4)) == 20


@pytest.mark.parametrize(
    ("error", "is_of_the_exchange"),
    [
        (RuntimeError("[/third_party/gloo/pair.cc:5] Connection closed by peer"), True),
        (torch.distributed.DistBackendError("NCCL error"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("gloo"), False),
    ],
)
def test_errors_of_the_exchange_are_known(error, is_of_the_exchange):
    assert broke(error) is is_of_the_exchange


def test_options_that_differ_are_named_with_the_rank():
    found = [{"lr": "1", "clip": "1"}, {"lr": "1", "clip": "1"}, {"lr": "2"}]
    assert differences(found) == [
        "--lr is 1 on rank 0 and 2 on rank 2",
        "--clip is 1 on rank 0 and missing on rank 2",
    ]
    assert differences(found[:2]) == []


def options_of(line):
    return parse(["shards", *line.split()], "")


def test_options_of_ranks_reach_what_they_are_for():
    options = options_of("--hook powersgd --bucket-mb 5 --static-graph --lr-warmup 40")
    found = parallel_of(options, program.techniques_of(options), Ranks(0, 2, torch.device("cuda")))
    assert (found.kind, found.hook, found.bucket_mb, found.static_graph) == (
        *("ddp", "powersgd", 5, True),
    )
    assert (found.powersgd_rank, found.powersgd_start) == (4, 40)


def test_gloo_gets_all_gradients_of_powersgd_in_one_bucket():
    # With several, two processes hung or aborted as soon as its factors were sent.
    model, powersgd = torch.nn.Linear(1000, 9000), Parallel(hook="powersgd")
    gloo, nccl = (Ranks(0, 2, torch.device(name)) for name in ("cpu", "cuda"))
    assert bucket_of(model, powersgd, gloo) > 9_009_000 * 4 / 2**20
    assert bucket_of(model, powersgd, nccl) is None
    assert bucket_of(model, Parallel(hook="bf16", bucket_mb=7), gloo) == 7


def test_the_log_names_the_ranks_at_both_ends():
    ranks = (RankFigures(0, 2.0, None, 0.1), RankFigures(1, None, None, 0.3))
    assert spread(ranks) == (
        "    of ranks: loss 2.000 (rank 0) to 2.000 (rank 0), "
        "waiting 10.0% (rank 0) to 30.0% (rank 1)"
    )


def test_every_option_is_documented():
    text = DOCS.read_text()
    given = vars(options_of(""))
    for name in ("parallel", "hook", "powersgd_rank", "bucket_mb", "static_graph"):
        assert name in given
        assert f"`--{name.replace('_', '-')}" in text
    assert "`--global-batch-size" in text
    assert "`--rank-timeout" in text
