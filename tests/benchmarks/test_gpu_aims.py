"""Figures that are aimed for on a GPU: read, compared and concluded; nothing is timed."""

import json
from contextlib import contextmanager

import pytest
import torch

import benchmarks.attention.__main__ as attention
import benchmarks.ladder.__main__ as ladder
from benchmarks.common import Absent, Result, Run, Spread
from benchmarks.gpu import aims, decode, feed, smoke
from benchmarks.gpu.aims import Bar
from benchmarks.gpu.decoders import Entry


def result(name, *rates):
    return Result(name=name, note="", runs=[Run(samples=int(rate), seconds=1) for rate in rates])


@pytest.mark.parametrize(
    ("bar", "said"),
    [
        (Bar(name="wait, ms", value=0.5, wanted=1), "wait, ms: 0.5 (at most 1: reached)"),
        (Bar(name="wait, ms", value=2, wanted=1), "wait, ms: 2 (at most 1: MISSED)"),
        (Bar(name="x", value=6.1, wanted=6, most=False), "x: 6.1 (at least 6: reached)"),
        (Bar(name="x", value=5.9, wanted=6, most=False), "x: 5.9 (at least 6: MISSED)"),
        (Bar(name="x", value=None, wanted=6), "x: not measured (at most 6)"),
    ],
    ids=str,
)
def test_a_bar_says_whether_it_was_reached(bar, said):
    assert str(bar) == said
    assert bar.reached == ("reached" in said)


def test_the_bars_of_a_folder_are_those_of_its_results(tmp_path, capsys):
    bars = [Bar(name="x plain", value=4.0, wanted=3.7, most=False)]
    for name, content in {
        "attention": {"title": "", **aims.as_json(bars, rehearsal=False)},
        "decode": aims.as_json(bars, rehearsal=True),
        "smoke": {"checks": {}},
        "other": [1],
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    aims.main([str(tmp_path)])
    assert capsys.readouterr().out == "attention.json: x plain: 4 (at least 3.7: reached)\n"


def test_decoding_aims_for_the_best_settings_of_dali_and_for_its_limit():
    results = [
        result("cpu", 20_000, 20_000),
        result("dali, batches of 32", 9_000, 9_000),
        result("dali, batches of 256", 16_000, 16_000),
        result("limit: DALI, decoding alone", 40_000, 40_000),
        result("limit: DALI, decoding and resizing", 32_000, 32_000),
        result("limit: DALI, decoding and resizing by its defaults", 36_000, 36_000),
        Result(name="nvjpeg", note="", missing="not installed"),
    ]
    latencies = {"cpu": Spread(7, 6, 8), "dali, batches of 32": Spread(9, 9, 9)}
    rate, share, latency = decode.aims(results, latencies, 32)
    assert (rate.value, share.value, latency.value) == (16_000, 0.5, 7)
    assert rate.reached
    assert not share.reached
    assert [bar.value for bar in decode.aims([], {}, 32)] == [None] * 3


def test_feeding_concludes_from_the_parts_that_were_measured():
    assert [bar.value for bar in attention.aims([])] == [None, None]
    assert all(bar.value is None for bar in feed.aims({"copies_ms": {"failed": "no driver"}}))
    reference = {
        "base": {"wait_share": 0.002, "gpu_busy": 0.97},
        "base, processes": {"wait_share": 0.03, "gpu_busy": 0.5},
        "small": {"wait_share": 0.5},
    }
    content = {
        "copies_ms": {f"{name}, page-locked": {"median": 0.8} for name in ("uint8", "float32")},
        "overlap": {"added_ms": {"a batch copied ahead": 0.2}},
        "loader": {"cpu": {"wait_ms_median": 0.1}, "dali": {"missing": "not installed"}},
        "reference": reference,
    }
    found = {bar.name: bar.value for bar in feed.aims(content)}
    assert found == {
        "copy of a batch of 32, uint8, page-locked, ms": 0.8,
        "copy of a batch of 32, float32, page-locked, ms": 0.8,
        "share of a float32 copy that is not hidden behind a step": pytest.approx(0.25),
        "wait of the main thread, decoder cpu, median, ms": 0.1,
        "wait of the main thread, decoder dali, median, ms": None,
        "base, share of the time waiting": 0.002,
        "base, share of the time in which the GPU worked": 0.97,
        "base, processes, share of the time waiting": 0.03,
        "base, processes, share of the time in which the GPU worked": 0.5,
    }


def test_what_a_copy_adds_is_of_steps_in_the_same_round():
    alone, ahead = result("alone", 100, 50, 100), result("ahead", 80, 50, 100)
    assert feed.added(ahead, alone) == pytest.approx(0)
    assert feed.added(result("ahead", 50, 40, 50), alone) == pytest.approx(10)


def test_a_ladder_counts_rounds_that_all_rungs_have():
    rungs = ladder.rungs(True, batch=16, pack=8192, images=32, workers=4, processes=1)
    runs = {
        0: [{"tokens_per_s": 10}, {"tokens_per_s": 11}],
        1: [{"tokens_per_s": 70}],
        2: [],
    }
    found = ladder.whole_rounds(rungs, runs)
    assert [len(each["runs"]) for each in found] == [1, 1]
    (bar,) = ladder.aims(found)
    assert (bar.value, bar.reached) == (7, True)
    assert ladder.aims(found[1:]) == []  # it does not begin with the naive loop


def test_checks_tell_failures_from_what_is_absent():
    def absent():
        raise Absent("not installed")

    def fails():
        raise AttributeError("module has no attribute")

    assert smoke.verdict(lambda: "fine") == {"state": "ok", "said": "fine"}
    assert smoke.verdict(absent) == {"state": "absent", "said": "not installed"}
    assert smoke.verdict(fails)["state"] == "FAILED"


def test_a_decoder_that_fails_has_no_latency():
    @contextmanager
    def slow():
        yield lambda batches: map(len, batches)
        closed.append("slow")

    def absent():
        raise Absent("not here")

    @contextmanager
    def broken():
        def decode(batches):
            raise RuntimeError("no driver")

        yield decode
        closed.append("broken")

    closed = []
    entries = [Entry(make.__name__, 2, make) for make in (slow, absent, broken)]
    found = decode.measure_latency(entries, [b"", b"", b""], torch.device("cpu"))
    assert list(found) == ["slow"]
    assert found["slow"].median >= 0
    assert len(closed) == 2
