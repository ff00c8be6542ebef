"""Shares of a mixture in its plan, and errors about its datasets."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe.loader.plan_report import report_plan


@pytest.fixture
def mix(packed: Path) -> Callable[..., datapipe.Loader]:
    """Makes loaders of a mixture of three names for one folder."""

    def make(**options: Any) -> datapipe.Loader:
        mixture = {
            "datasets": {
                "a": {"path": str(packed), "weight": 0.5},
                "b": {"path": str(packed), "weight": 0.3, "limit": 9},
                "c": {"path": str(packed), "weight": 0.2},
            },
            "epoch": "50 samples",
            "schedule": [{"from": "50 samples", "weights": {"c": 3}}],
        }
        given = {"batch_size": 5, "image": None, "meta": ("dataset", "valid"), "num_workers": 0}
        return datapipe.make_loader(mixture, **(given | options))

    return make


def drawn(loader: datapipe.Loader) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch in loader:
        counts.update(
            name for name, valid in zip(batch["dataset"], batch["valid"], strict=True) if valid
        )
    return counts


def test_shares_are_those_of_the_batches_of_an_epoch(mix, packed):
    loader = mix()
    for epoch in (0, 1, 4):
        loader.set_epoch(epoch)
        shares = loader.plan.shares()  # of the current epoch
        counts = drawn(loader)
        assert shares == {name: counts[name] / 50 for name in ("a", "b", "c")}
        assert shares == loader.plan.shares(epoch)
        assert sum(shares.values()) == pytest.approx(1)
    assert mix().plan.shares() == mix().plan.shares(0) != mix().plan.shares(1)
    with pytest.raises(datapipe.PlanError, match="epoch -1"):
        mix().plan.shares(-1)
    assert datapipe.make_loader(packed, batch_size=5).plan.shares() == {}


def test_a_report_counts_the_run_of_the_loader(mix):
    report = report_plan(mix(epochs=3))
    assert report.mixture is not None
    assert report.mixture.epochs == 3
    counts: Counter[str] = Counter()
    for epoch in range(3):
        loader = mix()
        loader.set_epoch(epoch)
        counts += drawn(loader)
    assert {each.name: each.run_drawn for each in report.mixture.datasets} == counts
    assert [(phase.start, phase.epoch, phase.step) for phase in report.mixture.phases] == [
        (0, 0, 0),
        (50, 1, 0),
    ]
    (later,) = [each for each in report.mixture.datasets if each.name == "b"]
    assert later.passes == counts["b"] / 9
    assert later.left_out["limit"] == 37 - 9


def test_excluded_samples_are_counted_as_if_they_took_part(mix, packed):
    whole = report_plan(mix()).mixture
    fewer = report_plan(mix(exclude=[0])).mixture  # of "a"
    assert whole is not None
    assert fewer is not None
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


def test_a_dataset_without_images_is_mixed_with_others(packed, tmp_path, text):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(
        "".join(
            f'{{"conversations": [{{"from": "human", "value": "What is {number}?"}}, '
            f'{{"from": "gpt", "value": "A number."}}]}}\n'
            for number in range(8)
        )
    )
    datapipe.pack_dataset(tmp_path / "raw", tmp_path / "texts")
    mixture = {str(packed): 1, "texts": {"path": str(tmp_path / "texts"), "weight": 1}}
    loader = datapipe.make_loader(
        mixture, pack=256, text=text(), image=datapipe.ImageSpec(size=16), num_workers=0,
        meta=("dataset", "images_per_sample", "valid"),
    )  # fmt: skip
    images = dict.fromkeys((str(packed), "texts"), 0)
    for batch in loader:
        for name, count in zip(batch["dataset"], batch["images_per_sample"].tolist(), strict=True):
            images[name] += count
    assert images["texts"] == 0 < images[str(packed)]
    plan = report_plan(loader).mixture
    assert plan is not None
    assert {each.name: each.images for each in plan.datasets} == images


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
