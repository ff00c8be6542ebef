"""Frames of videos are images of their sample; `max_frames` chooses some of them in the plan."""

import pytest

import datapipe
from datapipe import CacheSpec, DecodeError, ImageSpec, PlanError, StateMismatch
from datapipe.index.dataset import open_dataset
from datapipe.testing import assert_resumes_exactly, assert_same_batches

from .conftest import IMAGE_ID
from .video_shards import FRAMES, STILLS, level, make_shards

CHOSEN = {  # of so many frames of a video, if at most so many are wanted
    (5, 4): [0, 2, 3, 4],
    (9, 4): [0, 3, 6, 8],
    (40, 4): [0, 13, 26, 39],
}
TOKENS = 4  # of an image


def image(max_frames=None):
    return ImageSpec(size=16, patch=8, max_frames=max_frames)


@pytest.fixture
def shards(tmp_path):
    return make_shards(tmp_path / "videos")


@pytest.fixture
def make(shards, text):
    def make_loader(max_frames=None, path=shards, **options):
        if "pack" not in options:
            options.setdefault("batch_size", 1)
        options = {"image": image(max_frames), "num_workers": 0, "shuffle": False} | options
        options.setdefault("meta", ("key", "valid"))
        return datapipe.make_loader(path, text=text(image_tokens=TOKENS), **options)

    return make_loader


def levels(key, most=None):
    """Brightness of the images of a sample."""
    found = [level(key, 0, 0) - 20] if key in STILLS else []
    for video, count in enumerate(FRAMES[key]):
        kept = CHOSEN.get((count, most), range(min(count, most or count)))
        found += [level(key, video, frame) for frame in kept]
    return found


def check(batch, most=None):
    """Compare the images of a batch, and the tokens that stand for them, with those expected."""
    expected = [value for key in batch["key"] for value in levels(key, most)]
    found = batch["pixel_values"].float().mean((1, 2, 3)).tolist()
    assert found == pytest.approx(expected, abs=0.6)
    assert int((batch["input_ids"] == IMAGE_ID).sum()) == TOKENS * len(expected)


@pytest.mark.parametrize("most", [None, 1, 4])
def test_a_sample_has_its_images_and_the_chosen_frames_in_order(make, most):
    keys = []
    for batch in make(most):
        check(batch, most)
        keys += batch["key"]
    assert keys == list(FRAMES)


def test_frames_that_are_left_out_are_not_read(make, shards):
    dataset = open_dataset(shards)
    (member,) = [m for m in dataset.columns.members(3) if m.ext == "v0.0020.jpg"]
    with (shards / dataset.manifest.shards[0].name).open("r+b") as file:
        file.seek(member.offset)
        file.write(bytes(member.size))
    assert len(list(make(4))) == len(FRAMES)
    with pytest.raises(DecodeError, match=r"v0\.0020\.jpg"):
        list(make())


@pytest.mark.parametrize("most", [None, 4])
def test_packs_count_the_frames_that_they_have(make, tmp_path, most):
    folder = make_shards(tmp_path / "many", repeats=4)
    loader = make(most, path=folder, pack=250, shuffle=True)
    batches = list(loader)
    assert len(batches) == len(loader)
    for batch in batches:
        check(batch, most)
        assert batch["input_ids"].numel() <= 250
    assert sorted(key for b in batches for key in b["key"]) == sorted([*FRAMES] * 4)


def test_a_run_with_fewer_frames_resumes_exactly(make, tmp_path):
    folder = make_shards(tmp_path / "many", repeats=4)
    assert_resumes_exactly(
        lambda **more: make(4, path=folder, shuffle=True, pack=250, **more),
        world_sizes=(1, 2),
        stops=(0.3,),
    )


def test_another_number_of_frames_is_another_run_if_there_are_videos(make, packed):
    state = make(4).state_dict()
    make(4).load_state_dict(state)
    for most in (None, 3):
        with pytest.raises(StateMismatch, match="max_frames"):
            make(most).load_state_dict(state)
    make(path=packed).load_state_dict(make(4, path=packed).state_dict())


def test_conditions_see_the_images_that_are_left(make):
    assert [key for b in make(4, where="images == 4") for key in b["key"]] == ["000", "003"]
    with pytest.raises(PlanError, match="where keeps none"):
        make(where="images == 4")


def test_datasets_of_a_mixture_may_have_numbers_of_their_own(make, tmp_path):
    folders = {name: make_shards(tmp_path / name) for name in ("few", "all")}
    few = {"repeat": 1, "image": {"size": 16, "patch": 8, "max_frames": 4}}
    datasets = {str(folders["few"]): few, str(folders["all"]): "1x"}
    mixture = datapipe.Mixture.of({"datasets": datasets})
    counts = {}
    for batch in make(path=mixture):
        (key,) = batch["key"]
        counts.setdefault(key, []).append(len(batch["pixel_values"]))
    assert {key: sorted(found) for key, found in counts.items()} == {
        key: sorted([len(levels(key)), len(levels(key, 4))]) for key in FRAMES
    }


@pytest.mark.parametrize("keep", ["encoded", "decoded"])
def test_caches_keep_numbers_of_frames_apart(make, tmp_path, keep):
    cache = CacheSpec(disk=tmp_path / "cache", keep=keep)
    for most in (4, None, 4, None):
        for batch in make(most, cache=cache, epochs=2):
            check(batch, most)


def test_arrays_hold_all_frames(make, shards, tmp_path):
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=image())
    for batch in make(path=tmp_path / "arrays"):
        check(batch)
    refused = "max_frames=4 chooses among the frames of shards"
    with pytest.raises(PlanError, match=refused):
        make(4, path=tmp_path / "arrays")
    with pytest.raises(PlanError, match=refused):
        datapipe.convert_dataset(shards, tmp_path / "others", image=image(4))


def test_arrays_refuse_to_mirror_frames_one_by_one(make, shards, tmp_path):
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=image())
    mirrored = ImageSpec(size=16, patch=8, flip=0.5)
    with pytest.raises(PlanError, match="mirrors all frames of a video alike, and arrays"):
        make(path=tmp_path / "arrays", image=mirrored)


def test_a_cache_on_the_device_mirrors_the_frames_of_a_video_alike(make):
    options = {"image": ImageSpec(size=16, patch=8, flip=0.5), "epochs": 2}
    options["meta"] = ("key", "image_geometry")
    cached = make(device="cpu", cache=CacheSpec(device="1MB"), **options)
    assert_same_batches(list(make(**options)), list(cached))


def test_the_frames_of_a_video_are_cropped_and_mirrored_alike(make):
    random = ImageSpec(size=16, patch=8, random_crop=(0.2, 0.9), flip=0.5)
    drawn = {
        batch["key"][0]: list(map(tuple, batch["image_geometry"].tolist()))
        for batch in make(image=random, meta=("key", "image_geometry"))
    }
    assert len(set(drawn["003"])) == len(set(drawn["000"])) == 1
    still, first, second = drawn["002"][0], drawn["002"][1:4], drawn["002"][4:]
    assert len({still, *first, *second}) == 3
