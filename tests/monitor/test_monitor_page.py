"""A monitor's report as an HTML page."""

import html
import random
import re

import pytest

import datapipe

from .virtual import Batches, Clock


def trained(steps, wait=0.0, step=0.1):
    clock, draw = Clock(), random.Random(steps)
    monitor = datapipe.Monitor(clock=clock, warmup=2)
    for _ in monitor(Batches(clock, steps, wait)):
        with monitor.step():
            clock.sleep(step * draw.uniform(0.9, 1.1))
    return monitor


def test_a_page_is_one_file_that_needs_nothing_else(tmp_path):
    pytest.importorskip("matplotlib")
    monitor = trained(300, wait=0.05)
    monitor.save(tmp_path / "report.html")
    page = html.unescape((tmp_path / "report.html").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert monitor.verdict.sentence in page
    for action in monitor.verdict.actions:
        assert action.split("`")[0] in page
    assert page.count("<svg") == 2
    assert "waiting for batches 33." in page
    assert not re.search(r'(src|href)="(?!#)', page)


@pytest.mark.parametrize(("steps", "step"), [(0, 0.1), (3, 0.1), (50, 0.0), (50, 1e-7), (50, 90.0)])
def test_any_run_has_a_page(tmp_path, steps, step):
    pytest.importorskip("matplotlib")
    trained(steps, step=step).save(tmp_path / "report.html")
    assert "Training loop" in (tmp_path / "report.html").read_text()
