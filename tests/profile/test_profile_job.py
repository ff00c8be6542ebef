"""A profile says what holds a loader back and what would help, as text, JSON and a page."""

import json
from dataclasses import replace
from html import unescape

import pytest

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.profile.forecast import Forecast, rank
from datapipe.profile.job import profile_loader
from datapipe.profile.pipeline import run_pipeline
from datapipe.profile.remedies import predict_remedies
from datapipe.profile.report import profile_text, remedy_figure, write_report

from .figures import alone, roofline, run


def profile(make, **options):
    return profile_loader(make, shards="my/shards", **({"seconds": 0.4} | options))


@pytest.fixture(scope="session")
def profiled(endless):
    """Of a usual loader, with the pace of training."""
    return profile(endless, seconds=0.6, step_time=0.05)


@pytest.fixture
def busy(profiled, endless):
    """As if decoding had taken most of the time, which a busy machine may hide."""
    costs = {"read": (0.05, 0.05), "decode": (1.0, 1.0)}
    forecast = Forecast(
        run=run({"read": (1.0, 1.0), "decode": (18.5, 18.5)}),
        alone=alone(costs, profiled.forecast.alone.first.images),
        roofline=roofline(),
        processes=False,
    )
    remedies = rank(predict_remedies(endless(), forecast, shards="my/shards"))
    return replace(profiled, forecast=forecast, remedies=remedies)


def test_everything_that_was_measured_is_in_it(profiled):
    assert (profiled.samples, profiled.batch, profiled.workers) == (48, 8, "2 threads")
    assert profiled.needed == pytest.approx(160)
    assert profiled.rate > 0
    gains = [remedy.gain for remedy in profiled.remedies]
    assert gains == sorted(gains, reverse=True)
    assert all(remedy.how for remedy in profiled.remedies)
    document = json.loads(json.dumps(profiled.to_dict()))
    assert document["verdict"] == str(profiled.bottleneck)
    assert document["alone"]["decode"]["rate"] > 0
    assert set(document["pipeline"]["stages"]) >= {"read", "decode", "resize"}
    assert document["pipeline"]["stages"]["decode"]["seconds"] > 0
    assert document["pipeline"]["usage"]["cores"] >= 1
    assert document["paced"]["step_time"] == 0.05
    assert document["roofline"]["ceilings"]["decode kernels"]["rate"] > 0
    assert all("gain" in remedy for remedy in document["remedies"])


def test_the_text_begins_with_the_verdict_and_keeps_its_columns(busy):
    lines = profile_text(busy).split("\n")
    assert " ".join(lines).startswith(str(busy.bottleneck))
    for heading in ("Stages", "The loader at work", "What this machine can do"):
        assert heading in lines
    start = lines.index("Stages")
    table = [line for line in lines[start + 1 : start + 7] if line.startswith("  ")]
    assert len({len(line) for line in table}) == 1
    assert any(line.startswith("  decode ") for line in table)
    text = "\n".join(lines)
    assert "training's pace" in text
    assert "datapipe convert " in text


@pytest.mark.parametrize(("before", "at_work"), [(3, 0), (0, 3)])
def test_samples_that_fail_are_counted_even_if_the_loader_at_work_meets_none(busy, before, at_work):
    forecast = replace(
        busy.forecast,
        alone=replace(busy.forecast.alone, failed=before),
        run=replace(busy.forecast.run, skipped=at_work),
    )
    assert "3 samples skipped" in profile_text(replace(busy, forecast=forecast))


def test_the_page_has_its_figures_with_names_that_are_words(busy, tmp_path):
    pytest.importorskip("matplotlib")
    write_report(busy, tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text("utf-8")
    assert page.count("<svg") == 2
    assert str(busy.bottleneck)[1:] in unescape(page)
    axes = remedy_figure(busy, busy.remedies).axes[0]
    labels = {label.get_text() for label in axes.get_yticklabels()}
    assert {"memmap arrays", "scaled decode"} <= labels
    assert not [label for label in labels if "_" in label]


CASES = [
    pytest.param({"num_workers": 0}, id="no workers"),
    pytest.param({"num_workers": 1}, id="one worker"),
    pytest.param({"workers": "processes", "num_workers": 1}, id="processes"),
    pytest.param({"image": None}, id="texts"),
    pytest.param({"device": "cpu"}, id="device"),
    pytest.param({"image": ImageSpec.preset("qwen2-vl", max_pixels=12544)}, id="native"),
    pytest.param({"image": ImageSpec(size=64, random_crop=(0.3, 1.0))}, id="random"),
    pytest.param({"batch_size": 100}, id="batch of more than there is"),
    pytest.param({"transform": lambda sample, generator: sample}, id="transform"),
    pytest.param({"where": "width >= 300"}, id="where"),
]


@pytest.mark.campaign
@pytest.mark.parametrize("options", CASES)
def test_every_kind_of_loader_can_be_profiled(endless, options, tmp_path):
    pytest.importorskip("matplotlib")
    done = profile(lambda **changes: endless(**(options | changes)), seconds=0.2)
    assert done.rate > 0
    assert done.bottleneck.stage != "unknown"
    profile_text(done)
    json.dumps(done.to_dict())
    write_report(done, tmp_path / "out.html")


def test_three_samples_without_images_can_be_profiled(tmp_path, make_llava):
    talk = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]
    raw = make_llava(tmp_path / "raw", [{"conversations": talk}] * 3)
    datapipe.pack_dataset(raw, tmp_path / "shards")
    given = {"batch_size": 2, "epochs": None, "image": ImageSpec(size=32)}
    done = profile(lambda **more: datapipe.make_loader(tmp_path / "shards", **given, **more))
    assert done.samples == 3
    assert "of 3 in my/shards" in profile_text(done)
    assert done.forecast.alone.images == 0
    assert "decode kernels" not in done.forecast.roofline.ceilings


def test_a_loader_that_ends_too_early_is_refused(endless):
    with pytest.raises(PlanError, match="epochs=None"):
        run_pipeline(endless(epochs=1, run=datapipe.RunSpec(max_steps=1)), seconds=5.0)


def test_a_run_leaves_the_warm_up_out(endless):
    loader = endless()
    done = run_pipeline(loader, seconds=0.2)
    assert done.reading.batches < loader.meter.reading().batches
    assert done.reading.samples == 8 * done.reading.batches
    assert 0 < done.reading.seconds < 5
    assert done.events == []
