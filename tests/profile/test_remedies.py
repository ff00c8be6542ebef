"""Remedies are those that mean something for a loader, each with what it would give, ranked."""

import json
import shlex
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import datapipe
from datapipe import ImageSpec
from datapipe.cli.command import app
from datapipe.cli.values import parse_image
from datapipe.decode.array_spec import image_identity
from datapipe.decode.dali.graph import installed
from datapipe.decode.transform import make_transform
from datapipe.index.dataset import open_dataset
from datapipe.profile import image_remedies, remedies
from datapipe.profile.forecast import Forecast, Remedy, rank
from datapipe.profile.image_remedies import compare_images, convert_command, sufficient_side
from datapipe.profile.measure.alone import measure_alone
from datapipe.profile.measure.samples import COLD
from datapipe.profile.remedies import other_decoder, predict_remedies
from datapipe.profile.sizes import cache_bytes
from tests.case_files import cases
from tests.loader.video_shards import make_shards

from .figures import alone, roofline, run

ONE_MS = {"read": (0.05, 0.05), "decode": (0.7, 0.7), "resize": (0.3, 0.3)}
BUSY = {"read": (1.0, 1.0), "decode": (13.0, 13.0), "resize": (5.5, 5.5)}


def measured(seen, stages=ONE_MS, images=()):
    return Forecast(
        run=seen, alone=alone(stages, images), roofline=roofline(seen.usage.cores), processes=False
    )


def found(loader, forecast, shards="shards"):
    return {remedy.name: remedy for remedy in predict_remedies(loader, forecast, shards=shards)}


def busy(loader, **seen):
    """Figures of busy cores, with images of the loader."""
    images = measure_alone(loader, samples=16, seconds=1.0).first.images
    return measured(run(BUSY, **seen), images=images)


@pytest.fixture
def leave_free(monkeypatch):
    """Pretend a number of bytes of free memory."""

    def leave(size):
        for module in (remedies, image_remedies):
            monkeypatch.setattr(module, "free_memory", lambda: size)

    return leave


COLD_READS = measured(
    run({"read": (19.0, 0.5), "decode": (0.8, 0.8)}, read=10_000_000),
    ONE_MS | {COLD: (2.05, 0.05)},
)

# The cost of a sample.


def test_the_cost_of_a_sample_accounts_for_the_rate_that_was_measured():
    same = measured(run(BUSY, samples=7_000)).remedy("same", "as it is", "")
    assert (same.rate, same.gain) == (pytest.approx(700), pytest.approx(1.0))
    figures = measured(run(BUSY, cpu=19.9))
    assert sum(figures.cost.cpu.values()) == pytest.approx(19.5 / 10_000)
    assert figures.cost.overhead == pytest.approx(0.28 / 10_000)  # of no stage
    # Costs are those of a core that has no others beside it.
    slow = replace(figures, roofline=replace(figures.roofline, scaling={1: 1.0, 2: 1.3}))
    fast, crowded = figures.cost.cpu["decode"], slow.cost.cpu["decode"]
    assert crowded == pytest.approx(fast * 1.3 / 2, rel=0.02)


def test_waiting_for_storage_is_that_of_cold_reads_as_far_as_reads_were_cold():
    stages = ONE_MS | {COLD: (2.05, 0.05)}
    for share in (0.0, 0.5, 1.0):
        seen = run(BUSY, read=round(share * 10_000 * 1000))
        figures = measured(seen, stages)
        assert figures.cold == pytest.approx(share)
        assert figures.cost.wait.get("read", 0.0) == pytest.approx(share * 0.002, abs=1e-9)
        assert "read" not in figures.cost_of_reads(0.0).wait


# Remedies.


def test_the_number_of_workers_is_a_remedy_where_it_is_the_limit(endless):
    waits = {"read": (19.0, 0.5), "decode": (0.8, 0.8)}
    figures = measured(run(waits, samples=1_000), waits | {"collate": (0, 0)})
    remedy = found(endless(num_workers=2), figures)["workers"]
    workers = remedy.changes["num_workers"] if remedy.changes else 0
    assert workers > 2
    assert remedy.how == f"make_loader(num_workers={workers})"
    assert remedy.gain > 3
    assert "more workers" in remedy.title
    # The caller is the limit.
    figures = measured(run({"decode": (3, 3)}, {"collate": (9.0, 9.0)}, idle=17, count=4, cores=16))
    remedy = found(endless(num_workers=4), figures)["workers"]
    assert remedy.changes == {"num_workers": 1}
    assert remedy.gain == pytest.approx(1.0, abs=0.03)
    assert "fewer workers" in remedy.title
    # Cores are.
    assert "workers" not in found(endless(num_workers=2), measured(run(BUSY)))


def test_processes_are_the_remedy_for_a_lock(endless):
    locked = {"transform": (19, 9.5), "decode": (0.5, 0.3)}
    loader = endless(transform=lambda sample, generator: sample)
    figures = measured(run(locked, gil=0.7))
    assert figures.held == 1.0
    remedy = found(loader, figures)["processes"]
    assert remedy.gain == pytest.approx(2.0, abs=0.2)
    assert remedy.changes == {"workers": "processes", "num_workers": 2}
    assert "processes" not in found(loader, measured(run(locked, gil=0.1)))
    assert measured(run(BUSY, gil=0.7)).held == 0  # without a transform


def test_the_page_cache_is_the_remedy_for_cold_reads_of_a_small_dataset(endless, leave_free):
    remedy = found(endless(), COLD_READS, "my shards/")["page cache"]
    assert remedy.how == "cat 'my shards'/*.tar > /dev/null"
    assert remedy.gain > 2
    assert "page cache" not in found(endless(), measured(run(BUSY)))
    leave_free(1000)
    assert "page cache" not in found(endless(), COLD_READS)


def test_the_page_cache_of_a_mixture_is_filled_from_its_folders(photos, tmp_path):
    image = ImageSpec(size=32)
    datapipe.convert_dataset(photos, arrays := tmp_path / "my arrays", image=image)
    loader = datapipe.make_loader([photos, arrays], batch_size=8, image=image)
    remedy = found(loader, COLD_READS, "mixture.yaml")["page cache"]
    assert remedy.how == f"cat {photos}/*.tar '{arrays}'/*.npy > /dev/null"


def test_images_have_forms_that_are_compared_and_caches_that_are_worked_out(endless, leave_free):
    loader = endless()
    figures = busy(loader)
    remedies = found(loader, figures)
    assert set(remedies) >= {"scaled_decode", "uint8", "decoded cache", "memmap arrays"}
    assert remedies["smaller images"].max_side == 96
    assert remedies["smaller images"].gain > 1.5  # of 320x240
    assert remedies["decoded cache"].gain > 1.5
    assert "CacheSpec(memory=" in remedies["decoded cache"].how
    assert remedies["memmap arrays"].how == (
        "datapipe convert shards shards-arrays --image size=64x64,resize=stretch"
    )
    shrinks, sends_bytes = remedies["scaled_decode"].changes, remedies["uint8"].changes
    assert shrinks["image"] == ImageSpec(size=64, normalize="imagenet", scaled_decode=True)
    if not torch.cuda.is_available():
        assert sends_bytes["image"].out_dtype == torch.uint8
    # A cache that does not fit gives less.
    kept_images = make_transform(ImageSpec(size=64, normalize=None))
    need = cache_bytes(loader.dataset, kept_images)
    leave_free(round(need / 2 / 0.7))  # of what is free, seven tenths may be filled
    half = found(loader, figures)["decoded cache"]
    assert 1 < half.gain < remedies["decoded cache"].gain
    assert "50% fit" in half.note


FORMS = {"scaled_decode", "uint8", "smaller images", "decoded cache", "memmap arrays"}


@pytest.mark.parametrize(
    ("image", "absent"),
    [
        (ImageSpec(size=320, scaled_decode=True), {"scaled_decode", "uint8", "smaller images"}),
        (ImageSpec(size=64, random_crop=(0.5, 1.0)), {"decoded cache", "memmap arrays"}),
        (None, FORMS),
    ],
    ids=["there already", "random", "no images"],
)
def test_what_cannot_help_is_not_offered(endless, image, absent):
    loader = endless(image=image)
    assert not absent & set(found(loader, busy(loader)))


def test_what_is_for_jpegs_is_not_offered_for_pngs(tmp_path, encode, crop):
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(8):
        (raw / f"{number}.png").write_bytes(encode(crop(size=(320, 240)), "PNG"))
    datapipe.pack_dataset(raw, tmp_path / "shards")
    image = ImageSpec(size=64)
    with datapipe.make_loader(
        tmp_path / "shards", batch_size=4, epochs=None, image=image
    ) as loader:
        remedies = found(loader, busy(loader))
    assert "scaled_decode" not in remedies
    assert remedies["smaller images"].note == ""


@pytest.mark.parametrize(
    ("image", "offered"),
    [
        (ImageSpec(size=16), True),
        (ImageSpec(size=16, flip=0.5), False),
        (ImageSpec(size=16, max_frames=2), False),
    ],
    ids=str,
)
def test_arrays_are_offered_for_videos_where_a_loader_would_take_them(tmp_path, image, offered):
    make_shards(tmp_path)
    with datapipe.make_loader(tmp_path, batch_size=2, epochs=None, image=image) as loader:
        assert ("memmap arrays" in found(loader, busy(loader))) == offered


@pytest.mark.parametrize("spec", [ImageSpec(size=64), ImageSpec(resize="native")], ids=str)
def test_a_cache_of_the_size_that_is_estimated_holds_all_samples(photos, spec):
    need = cache_bytes(open_dataset(photos), make_transform(spec))

    def share(memory):
        cache = datapipe.CacheSpec(memory=memory, keep="decoded")
        with datapipe.make_loader(photos, batch_size=2, image=spec, cache=cache) as loader:
            return loader.stats()["memory"].expected

    assert share(need) == 1
    assert share(need - 1) < 1


def test_every_option_that_is_named_is_taken(endless):
    loader = endless(num_workers=1)
    figures = busy(loader, count=1, cores=4)
    remedies = [remedy for remedy in found(loader, figures).values() if remedy.changes]
    assert len(remedies) >= 3
    for remedy in remedies:
        other = endless(**dict(remedy.changes or {}))
        assert next(iter(other))["pixel_values"].shape == (8, 3, 64, 64)
        other.close()


def test_the_command_for_smaller_images_packs_them(endless, photos):
    loader = endless()
    figures = busy(loader)
    how = found(loader, figures, f"{photos}/")["smaller images"].how
    there = found(loader, figures, "https://host/shards")["smaller images"]
    assert there.how == "datapipe pack RAW OUT --max-side 96"
    assert there.note == "of the raw data"
    words = shlex.split(how)
    assert words[0] == "datapipe"
    assert CliRunner().invoke(app, words[1:]).exit_code == 0
    smaller = datapipe.make_loader(words[3], batch_size=8, image=ImageSpec(size=64))
    assert len(smaller.dataset) == len(loader.dataset)
    assert smaller.dataset.columns.image_width.max() == 96
    assert sorted(t for b in smaller for t in b["text"])[0] == "photograph 0 of a cat"


@pytest.mark.skipif(not installed(), reason="DALI is not installed")
@pytest.mark.parametrize(("now", "other"), [("cpu", "dali"), ("dali", "cpu")])
def test_the_other_decoder_is_run(endless, now, other):
    loader = endless(decoder=now)
    [remedy] = other_decoder(loader, endless, rate=100.0, seconds=0.2)
    loader.close()
    assert (remedy.name, remedy.source) == (other, "measured")
    assert remedy.changes == {"decoder": other}
    assert remedy.rate == pytest.approx(100 * remedy.gain)
    assert remedy.gain > 0


def test_a_decoder_that_cannot_do_it_is_not_run(endless):
    def make(**changes):
        return endless(**({"image": ImageSpec(resize="native")} | changes))

    assert other_decoder(make(), make, rate=1.0, seconds=0.1) == []
    assert other_decoder(endless(image=None), endless, rate=1.0, seconds=0.1) == []


def test_remedies_are_ranked_by_gain_and_equal_ones_keep_their_order():
    def remedy(name, gain):
        return Remedy(name=name, title=name, how="x", rate=gain, gain=gain)

    ranked = rank([remedy("a", 1.1), remedy("b", 2.0), remedy("c", 2.001), remedy("d", 0.5)])
    assert [entry.name for entry in ranked] == ["b", "c", "a", "d"]
    assert json.loads(json.dumps(ranked[1].to_dict()))["how"] == "x"


# Images in another form.


def test_forms_of_images_are_compared_by_the_time_they_take(encode, crop):
    large = [encode(crop("chelsea.png", (320, 240), left)) for left in range(4)]
    small = [encode(crop("chelsea.png", (40, 30), left)) for left in range(4)]
    transform = make_transform(ImageSpec(size=32))
    factors = compare_images((transform, large), (transform, small))
    assert factors["decode"] < 0.7
    large[3] = large[3][:200]  # damaged images are left out
    same = compare_images((transform, large), (transform, large))
    assert 0.5 < same["decode"] < 2


@pytest.mark.parametrize(("image", "side"), cases("profile/sides"))
def test_a_side_suffices_where_no_photograph_has_to_be_enlarged(image, side):
    assert sufficient_side(parse_image(image)) == int(side)


@pytest.mark.parametrize(
    "image",
    [
        *("64,normalize=imagenet", "64,resize=pad", "clip"),
        "48x64,resize=pad,normalize=clip,interpolation=bicubic",
        "224,resize=crop,crop_from=256,scaled_decode,flip=0.5",
    ],
)
def test_the_command_for_arrays_makes_those_that_the_loader_would_decode(image):
    spec = parse_image(image)
    words = shlex.split(convert_command("my shards/", spec))
    assert words[:5] == ["datapipe", "convert", "my shards", "my shards-arrays", "--image"]
    assert image_identity(parse_image(words[5])) == image_identity(spec)


def test_a_colour_that_the_command_cannot_say_is_left_to_python():
    how = convert_command("s3://b/shards", ImageSpec(size=64, resize="pad", fill=(1, 2, 3)))
    assert how.startswith("datapipe.convert_dataset('s3://b/shards', 'arrays', image=")


def test_a_list_of_shards_is_named_as_a_shell_takes_it(endless):
    loader = endless()
    how = found(loader, COLD_READS, "a/{0..1}.tar::b/*.tar")["page cache"].how
    assert how == "cat a/{0..1}.tar b/*.tar > /dev/null"
    remedies = found(loader, busy(loader), "a/{0..1}.tar")
    assert remedies["smaller images"].how == (
        "datapipe pack 'a/{0..1}.tar' shards-96 --max-side 96"
    )
    assert "convert 'a/{0..1}.tar' arrays --image" in remedies["memmap arrays"].how
