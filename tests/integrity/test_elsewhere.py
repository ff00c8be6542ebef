"""A program may go to another folder while a loader lives, as Hydra does."""

import shutil
from pathlib import Path

import pytest

import datapipe
from datapipe import CacheSpec, ImageSpec, make_loader
from datapipe.errors import PlanError


@pytest.mark.parametrize(
    "data", ["shards", "arrays", "tars", "tars/*.tar", "tars/shard-000000.tar"]
)
def test_relative_paths_are_those_of_the_start(tmp_path, make_folder, monkeypatch, data):
    image = ImageSpec(size=8)
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 8), tmp_path / "shards", shard_size="4")
    datapipe.convert_dataset(tmp_path / "shards", tmp_path / "arrays", image=image)
    (tmp_path / "tars").mkdir()
    for path in (tmp_path / "shards").glob("*.tar"):
        shutil.copy(path, tmp_path / "tars")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    options = {"batch_size": 2, "image": image, "cache": CacheSpec(plan="plans")}
    if data != "arrays":
        options["cache"] = CacheSpec(disk="cache", plan="plans")
    expected = [batch["key"] for batch in make_loader(data, **options)]
    shutil.rmtree("plans")
    shutil.rmtree("cache", ignore_errors=True)
    loader = make_loader(data, **options)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [batch["key"] for batch in loader] == expected
    assert not list(Path().iterdir())


@pytest.mark.parametrize("disk", ["", 5, b"cache"])
def test_a_disk_cache_needs_a_folder(disk):
    with pytest.raises(PlanError, match=r"cache disk .*: give a path"):
        CacheSpec(disk=disk)
