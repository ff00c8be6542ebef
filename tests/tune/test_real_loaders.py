"""Real loaders, real time: nothing is asserted about which setting is best, much about the rest."""

import multiprocessing
import threading

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import datapipe
from datapipe.loader.tuned_settings import recall
from datapipe.tune.result import write_report

pytestmark = pytest.mark.campaign  # measures real time


class Numbers(Dataset[torch.Tensor]):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        if index > 9_990:
            raise IndexError("there are fewer")
        return torch.tensor([index])


@pytest.fixture
def make(tmp_path, make_folder):
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 24), tmp_path / "shards")
    usual = {"batch_size": 4, "image": datapipe.ImageSpec(size=32)}
    return lambda **given: datapipe.make_loader(tmp_path / "shards", **usual, **given)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_torch_loader_is_tuned_and_leaves_no_process_behind(persistent):
    def make(num_workers, prefetch_factor):
        given = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
        persists = persistent and num_workers > 0
        return DataLoader(Numbers(), batch_size=4, persistent_workers=persists, **given)

    before = set(psutil.Process().children())  # such as servers that other tests' workers left
    result = datapipe.tune_workers(make, num_workers=(0, 1, 2), prefetch_factor=(2,), budget=4.0)
    assert not multiprocessing.active_children()
    assert set(psutil.Process().children()) <= before
    assert result.samples_rate == pytest.approx(4 * result.rate)
    assert {row.setting.num_workers for row in result.settings} == {0, 1, 2}
    assert all(row.memory > 1e7 for row in result.settings if row.memory is not None)
    assert any(row.memory is not None for row in result.settings)


def test_what_is_found_for_a_datapipe_loader_is_taken_by_auto_and_reported(make, tmp_path):
    pytest.importorskip("matplotlib")
    before = threading.active_count()
    result = datapipe.tune_workers(make, num_workers=(1, 2), prefetch_factor=(3,), budget=3.0)
    assert threading.active_count() <= before
    loader = make(num_workers="auto", prefetch_factor="auto")
    assert loader.options.num_workers == result.num_workers
    assert loader.options.prefetch_factor == 3
    kept = recall(loader.components().find_tuning_key())
    assert (kept.rate, kept.step_time) == (result.rate, None)
    seen = [trial.figures for trial in result.trials if trial.figures is not None]
    assert seen
    assert all({"read", "decode"} <= {*figures.reading.stages} for figures in seen)
    assert all("collate" in figures.reading.caller for figures in seen)
    assert result.samples_rate == pytest.approx(4 * result.rate, rel=0.01)
    write_report(result, tmp_path / "report.html", "datapipe tune-workers <shards>")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "datapipe tune-workers &lt;shards&gt;" in page
    assert page.count("<svg") == 1
    for row in result.settings:
        assert row.rate is None or f"{row.rate:,.1f}" in page
    assert f"num_workers={result.num_workers}" in page


def test_the_result_is_kept_for_the_kind_of_workers_that_was_chosen(make):
    result = datapipe.tune_workers(
        make,
        num_workers=(1,),
        prefetch_factor=(2, 3),
        variants=[{"workers": "threads"}, {"workers": "processes"}],
        budget=7.0,
        step_time=0.01,
    )
    key = make(**result.variant).components().find_tuning_key()
    kept = recall(key)
    assert kept.prefetch_factor == result.prefetch_factor
    assert kept.step_time == result.step_time == 0.01
    assert not multiprocessing.active_children()
