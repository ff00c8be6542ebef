"""Shares of a mixture in its plan, and errors about its datasets."""

from collections import Counter

import pytest

import datapipe
from datapipe.loader.plan_report import report_plan

from .datasets import META, draws


@pytest.fixture
def mix(packed):
    """Makes loaders of a mixture of three names for one folder."""

    def make(**options):
        mixture = {
            "datasets": {
                "a": {"path": packed, "weight": 0.5},
                "b": {"path": packed, "weight": 0.3, "limit": 9},
                "c": {"path": packed, "weight": 0.2},
            },
            "epoch": "50 samples",
            "schedule": [{"from": "50 samples", "weights": {"c": 3}}],
        }
        given = {"batch_size": 5, "image": None, "meta": META[:3], "num_workers": 0}
        return datapipe.make_loader(mixture, **given | options)

    return make


def test_shares_are_those_of_the_batches_of_each_epoch_and_of_the_run(mix, packed):
    loader, run = mix(), Counter[str]()
    for epoch in range(3):
        loader.set_epoch(epoch)
        shares = loader.plan.shares()  # of the current epoch
        counts = Counter(name for name, _ in draws(loader))
        assert shares == {name: counts[name] / 50 for name in ("a", "b", "c")}
        assert shares == loader.plan.shares(epoch)
        run += counts
    assert mix().plan.shares() == mix().plan.shares(0) != mix().plan.shares(1)
    with pytest.raises(datapipe.PlanError, match="epoch -1"):
        mix().plan.shares(-1)
    assert datapipe.make_loader(packed, batch_size=5).plan.shares() == {}
    report = report_plan(mix(epochs=3)).mixture
    assert report.epochs == 3
    assert {each.name: each.run_drawn for each in report.datasets} == run
    assert [(one.start, one.epoch, one.step) for one in report.phases] == [(0, 0, 0), (50, 1, 0)]
    assert report.datasets[1].passes == run["b"] / 9
    assert report.datasets[1].left_out["limit"] == 37 - 9


def test_excluded_samples_are_counted_as_if_they_took_part(mix):
    whole, fewer = (report_plan(mix(**more)).mixture for more in ({}, {"exclude": [0]}))  # of "a"
    assert [each.drawn for each in fewer.datasets] == [each.drawn for each in whole.datasets]


def test_errors_of_a_dict_name_the_dataset(packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long names are shortened
    (tmp_path / "empty").mkdir()
    for folder, message in (
        ("none", "no such folder"),
        ("empty", "is empty, without dataset.json or"),
    ):
        mixture = {str(packed): 1, folder: 1}
        with pytest.raises(datapipe.IndexMismatch, match=message) as refused:
            datapipe.make_loader(mixture, batch_size=2)
        assert f"dataset '{folder}' of the mixture: " in str(refused.value)


def test_a_dataset_without_images_is_mixed_with_others(packed, tmp_path, text, make_llava):
    turns = [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "A number."}]
    make_llava(tmp_path / "raw", [{"conversations": turns}] * 8)
    datapipe.pack_dataset(tmp_path / "raw", tmp_path / "texts")
    mixture = {"packed": {"path": packed}, "texts": {"path": tmp_path / "texts"}}
    options = {"image": datapipe.ImageSpec(size=16), "meta": ("dataset", "images_per_sample")}
    loader = datapipe.make_loader(mixture, pack=256, text=text(), num_workers=0, **options)
    images = dict.fromkeys(mixture, 0)
    for batch in loader:
        for name, count in zip(batch["dataset"], batch["images_per_sample"].tolist(), strict=True):
            images[name] += count
    assert images["texts"] == 0 < images["packed"]
    assert {each.name: each.images for each in report_plan(loader).mixture.datasets} == images


def test_static_shapes_have_room_for_the_images_of_every_dataset(packed, text):
    mixture = {
        "a": {"path": str(packed), "weight": 1},
        "b": {"path": str(packed), "weight": 1, "text": text(image_tokens=2)},
    }
    pack = datapipe.PackSpec(128, static_shapes=True)
    image = datapipe.ImageSpec(size=16)
    loader = datapipe.make_loader(mixture, pack=pack, text=text(), image=image, num_workers=0)
    shapes = {tuple(batch["pixel_values"].shape) for batch in loader}
    assert shapes == {(128 // 2, 3, 16, 16)}


def test_a_folder_named_like_a_file_is_a_dataset(packed, tmp_path):
    folder = tmp_path / "data.yaml"
    folder.symlink_to(packed)
    assert len(datapipe.make_loader(folder, batch_size=4, image=None).dataset) == 37


def test_a_file_behind_a_url_is_refused():
    with pytest.raises(datapipe.PlanError, match="must be local; download it"):
        datapipe.make_loader("https://example.com/mixture.yaml", batch_size=4)
