"""Cached samples give the batches that uncached ones give, wherever they come from."""

import logging
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

import datapipe
from datapipe import CacheSpec, DecodeError, ImageSpec
from datapipe.testing import assert_same_batches

from ..campaigns import rare

IMAGES = {
    "stretch": ImageSpec(size=24, normalize="clip"),
    "uint8": ImageSpec(size=24),
    "bfloat16": ImageSpec(size=24, normalize="clip", dtype=torch.bfloat16),
    "pad": ImageSpec(size=(24, 40), resize="pad", normalize="siglip"),
    "flip": ImageSpec(size=24, resize="crop", flip=0.5, normalize="imagenet"),
    "random-crop": ImageSpec(size=24, random_crop=(0.3, 1.0), flip=0.5),
    "shortest": ImageSpec(resize="shortest", size=16, normalize="clip"),
    "native": ImageSpec(
        resize="native", patch=8, merge=2, min_pixels=256, max_pixels=4096, normalize="clip"
    ),
    "tiles": ImageSpec(resize="tiles", size=16, tiles=4, normalize="imagenet"),
    "anyres": ImageSpec(
        resize="tiles", size=16, grids=((16, 32), (32, 16), (32, 32)), normalize="clip"
    ),
    "none": None,
}
ON_DEVICE = [name for name in IMAGES if name not in ("random-crop", "shortest", "none")]
LOTS = 1 << 30


def reads_of(loader):
    """Samples that were read from shards."""
    return loader.stats()["source"].hits


def spec_of(tier, folder, **options):
    places = {name: LOTS for name in ("memory", "device") if name in tier}
    if "disk" in tier:
        places |= {"disk": folder / "cache"}
    return CacheSpec(**{**places, **options})


@pytest.mark.parametrize(
    ("tier", "form"),
    [
        *(("memory", form) for form in IMAGES),
        *(("device", form) for form in ON_DEVICE),
        *(("disk", "native"), ("memory and disk", "tiles")),
        *(rare(tier, form) for tier in ("disk", "memory and disk") for form in IMAGES),
    ],
)
def test_batches_are_those_without_a_cache(make, tmp_path, form, tier):
    options = {"image": IMAGES[form], "epochs": 3, "meta": ("source", "id")}
    if form != "none":
        options["meta"] += ("image_geometry",)
    if tier == "device":
        options["device"] = "cpu"
    loader = make(cache=spec_of(tier, tmp_path), **options)
    assert_same_batches(loader, make(**options))
    if tier == "device":
        device = loader.stats()["device"]
        assert 37 == device.kept <= device.hits / 2
        return
    # Repeats in the last step may be read before the sample they repeat was kept, and so may the
    # first steps of the next epoch, which are prepared while the last of this one is.
    assert 37 <= reads_of(loader) <= 56


@pytest.mark.parametrize("keep", ["decoded", "encoded"])
@pytest.mark.parametrize("memory", [rare(1000), 40_000, rare(100_000)])
@pytest.mark.parametrize("policy", ["pin", "next-use"])
def test_a_cache_that_is_too_small_changes_nothing(make, keep, memory, policy):
    options = {"image": IMAGES["stretch"], "epochs": 4}
    cache = CacheSpec(memory=memory, keep=keep, policy=policy)
    assert_same_batches(make(cache=cache, **options), make(**options))


@pytest.mark.parametrize("tier", ["memory", "disk", "device"])
def test_worker_processes_share_a_cache(make, tmp_path, tier):
    options = {"image": IMAGES["stretch"], "epochs": 3}
    if tier == "device":
        options = {"image": IMAGES["flip"], "epochs": 3, "device": "cpu"}
    expected = list(make(**options))
    loader = make(cache=spec_of(tier, tmp_path), workers="processes", **options)
    assert_same_batches(loader, expected)
    stats = loader.stats()
    if tier == "device":
        # Steps that were prepared ahead may be decoded once more.
        assert stats["device"].hits > 37
    else:
        assert stats[tier].hits >= 2 * 37
        assert 37 <= stats["source"].hits <= 48
    loader.close()


def test_packs_and_truncated_texts_are_cached_too(make, text):
    cut = {"text": text(max_length=24, overlong="truncate"), "batch_size": 4}
    tiles = replace(IMAGES["tiles"], patch=8)
    per_tile = {"text": text(image_tokens="per-tile"), "pack": 256, "image": tiles}
    for unit in ({"text": text(), "pack": 200}, cut, per_tile):
        options = {"image": IMAGES["stretch"], "epochs": 3, **unit}
        loader = make(cache=CacheSpec(memory=LOTS), **options)
        assert_same_batches(loader, make(**options))
        assert reads_of(loader) <= 48
        on_device = make(device="cpu", cache=CacheSpec(device=LOTS), **options)
        assert_same_batches(on_device, make(**options))
        assert on_device.stats()["device"].hits > 0


def test_other_images_have_a_cache_of_their_own(make, tmp_path):
    cache = spec_of("disk", tmp_path)
    for form in ("stretch", "pad", "stretch", "native"):
        options = {"image": IMAGES[form]}
        assert_same_batches(make(cache=cache, **options), make(**options))
    # Other values of the same pixels are made of the same entries.
    clip, imagenet = ImageSpec(size=24, normalize="clip"), ImageSpec(size=24, normalize="imagenet")
    assert_same_batches(make(cache=cache, image=imagenet), make(image=imagenet))
    assert_same_batches(make(cache=cache, image=clip), make(image=clip))
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_damaged_entries_are_made_anew(make, tmp_path, caplog):
    cache, options = spec_of("disk", tmp_path), {"image": IMAGES["stretch"]}
    expected = list(make(cache=cache, **options))
    (entries,) = (tmp_path / "cache").glob("*/entries")
    content = bytearray(entries.read_bytes())
    content[500] ^= 1
    content[-20_000:] = bytes(20_000)  # torn: pages that never reached the disk
    entries.write_bytes(content[:-1000])
    loader = make(cache=cache, **options)
    assert_same_batches(loader, expected)
    assert 2 <= reads_of(loader) < 37
    assert "damaged" in caplog.text
    again = make(cache=cache, **options)
    assert_same_batches(again, expected)
    assert reads_of(again) == 0


FULL = """
import errno, logging, os, resource, sys
import torch
import datapipe

logging.basicConfig(format="LOG %(message)s", stream=sys.stdout)
folder, cache, limit = sys.argv[1:]

def batches(**more):
    image = datapipe.ImageSpec(size=24, normalize="clip")
    loader = datapipe.make_loader(
        folder, batch_size=4, epochs=2, image=image, num_workers=0, **more
    )
    found = [batch["pixel_values"].clone() for batch in loader]
    if "cache" in more:
        print("STATS", loader.stats()["disk"].hits, loader.stats()["disk"].expected)
    return found

expected = batches()
if limit == "posix_fallocate":
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.posix_fallocate = full
else:
    # Writes at or behind this offset of any file fail.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
found = batches(cache=datapipe.CacheSpec(disk=cache))
assert len(found) == 20 and all(torch.equal(a, b) for a, b in zip(found, expected))
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("limit", "serves"), [("0", False), ("posix_fallocate", False), ("65000", True)]
)
def test_a_disk_that_is_full_does_not_end_training(packed, tmp_path, limit, serves):
    command = [sys.executable, "-c", FULL, packed, tmp_path / "cache", limit]
    out = subprocess.run(command, timeout=300, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("LOG nothing more is cached") == 1, out.stdout
    hits, expected = out.stdout.partition("STATS ")[2].split()
    assert (int(hits) > 0, expected) == ((True, "1.0") if serves else (False, "0.0"))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_cache_folder_that_cannot_be_made_does_not_end_training(make, tmp_path, caplog, workers):
    (tmp_path / "file").touch()
    options = {"image": IMAGES["stretch"], "workers": workers}
    loader = make(cache=CacheSpec(disk=tmp_path / "file" / "cache"), **options)
    assert_same_batches(loader, make(**options))
    assert caplog.text.count("nothing more is cached") == 1
    assert loader.stats()["disk"].expected == 0
    loader.close()


@pytest.mark.campaign
def test_a_killed_process_leaves_a_good_cache(packed, make, tmp_path):
    program = """
import sys, os, signal, datapipe
image = datapipe.ImageSpec(size=24, normalize="clip")
cache = datapipe.CacheSpec(disk=sys.argv[2])
loader = datapipe.make_loader(sys.argv[1], batch_size=4, image=image, cache=cache, num_workers=2)
for step, _ in enumerate(loader):
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    cache = spec_of("disk", tmp_path)
    done = subprocess.run([sys.executable, "-c", program, packed, str(cache.disk)], timeout=300)
    assert done.returncode == -signal.SIGKILL
    options = {"image": IMAGES["stretch"]}
    loader = make(cache=cache, **options)
    assert_same_batches(loader, make(**options))
    assert 0 < reads_of(loader) < 30


def test_foreign_tars_that_were_replaced_are_not_served_from_the_cache(tmp_path, make_tar, encode):
    def images(path, **options):
        loader = datapipe.make_loader(
            path, batch_size=2, shuffle=False, image=IMAGES["uint8"], **options
        )
        return [batch["pixel_values"] for batch in loader]

    folder = tmp_path / "tars"
    for colour in ("red", "blue"):
        image = encode(Image.new("RGB", (24, 24), colour), "BMP")
        make_tar(folder / "x.tar", [(f"{number}.bmp", image) for number in range(4)])
        if colour == "blue":
            # Before it is indexed again, it is noticed when it is read.
            with pytest.raises(DecodeError, match=r"was replaced; .*datapipe index --force"):
                images(folder)
            datapipe.index_shards(folder, force=True)
        cached = images(folder, cache=spec_of("disk", tmp_path))
        assert [batch[0, :, 0, 0].tolist() for batch in cached] == [
            [255 * (colour == "red"), 0, 255 * (colour == "blue")]
        ] * 2


def test_a_disk_cache_keeps_to_its_size(make, tmp_path):
    cache = spec_of("disk", tmp_path, disk_size=60_000)
    options = {"image": IMAGES["stretch"], "epochs": 2}
    loader = make(cache=cache, **options)
    assert_same_batches(loader, make(**options))
    assert 0 < loader.stats()["disk"].kept < 37
    (entries,) = (tmp_path / "cache").glob("*/entries")
    assert entries.stat().st_blocks * 512 <= 60_000 + 4096 * 37


def test_stats_say_where_samples_came_from(make, tmp_path):
    options = {"batch_size": 37, "epochs": 3, "num_workers": 0}
    loader = make(cache=spec_of("memory and disk", tmp_path), **options)
    list(loader)
    stats = loader.stats()
    assert stats["source"].hits == 37
    assert stats["memory"].hits == 2 * 37
    assert stats["memory"].kept == stats["disk"].kept == 37
    assert stats["disk"].hits == 0
    loader = make(cache=spec_of("memory and disk", tmp_path), **options)
    list(loader)
    assert loader.stats()["disk"].hits == 37
    assert loader.stats()["memory"].bytes > 0


@pytest.mark.parametrize("tier", ["memory", "device"])
def test_skipped_samples_are_not_kept(damaged, tmp_path, tier):
    options = {"batch_size": 4, "on_error": "skip", "epochs": 3, "device": "cpu"}
    options["image"] = IMAGES["stretch"]
    cached = datapipe.make_loader(damaged, cache=spec_of(tier, tmp_path), **options)
    assert_same_batches(cached, datapipe.make_loader(damaged, **options))
    assert cached.skipped == 6
    assert cached.stats()[tier].kept == 35


def test_what_was_served_is_said_beside_what_was_expected(make, caplog):
    loader = make(image=IMAGES["uint8"], cache=CacheSpec(memory=LOTS), epochs=3, num_workers=0)
    with caplog.at_level(logging.INFO, logger="datapipe"):
        list(loader)
    said = [line for line in caplog.messages if "samples came from" in line]
    assert [line.partition(":")[0] for line in said] == ["epoch 0", "epoch 1", "epoch 2"]
    assert "memory 100.0% (expected 100.0%), source 0.0%" in said[-1]


@pytest.mark.parametrize("form", ["uint8", "bfloat16", "pad", "flip"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_compiled_kernels_restore_the_same_batches(make, kernel_loader, form, device):
    kernel_loader.load()
    options = {"image": IMAGES[form], "epochs": 3, "device": device}
    expected = list(make(**options))
    loader = make(cache=CacheSpec(memory=LOTS), **options)
    assert_same_batches(loader, expected)
    part = CacheSpec(memory=60_000, device=None if device is None else 20_000)
    assert_same_batches(make(cache=part, **options), expected)
