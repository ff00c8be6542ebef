"""Cached samples give the batches that uncached ones give, wherever they come from."""

import errno
import fcntl
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading

import pytest
from PIL import Image

import datapipe
from datapipe import CacheSpec, DecodeError, ImageSpec
from datapipe.testing import assert_same_batches
from tests.limits import limited
from tests.waiting import wait_until

from ..campaigns import rare
from .stated import IMAGES, darken

FORMS = [*IMAGES, "none"]
ON_DEVICE = [name for name in IMAGES if name not in ("random-crop", "shortest", "dynamic")]
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
        *(("memory", form) for form in FORMS),
        *(("device", form) for form in ON_DEVICE),
        *(("disk", "native"), ("memory and disk", "tiles")),
        *(rare(tier, form) for tier in ("disk", "memory and disk") for form in FORMS),
    ],
)
def test_batches_are_those_without_a_cache(make, tmp_path, form, tier):
    options = {"image": IMAGES.get(form), "epochs": 3, "meta": ("source", "id")}
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
    per_tile = {"text": text(image_tokens="per-tile"), "pack": 256, "image": IMAGES["tiles"]}
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


@pytest.mark.parametrize(("limit", "serves"), [(0, False), (None, False), (65_000, True)])
def test_a_disk_that_is_full_does_not_end_training(
    make, tmp_path, caplog, failing_disk, limit, serves
):
    """Files grow up to a limit; without one, they are refused their room."""
    options = {"image": IMAGES["stretch"], "epochs": 2, "num_workers": 0}
    expected = list(make(**options))
    no_room = failing_disk("posix_fallocate", lambda call: True)
    with no_room if limit is None else limited(resource.RLIMIT_FSIZE, limit):
        loader = make(cache=spec_of("disk", tmp_path), **options)
        assert_same_batches(loader, expected)
    assert caplog.text.count("nothing more is cached") == 1
    assert limit != 0 or "File too large" in caplog.text
    disk = loader.stats()["disk"]
    assert (disk.hits > 0, disk.expected) == ((True, 1.0) if serves else (False, 0.0))


@pytest.mark.parametrize(
    ("there", "workers"),
    [
        ("file", "threads"),
        ("file/below", "processes"),
        ("entries", "threads"),
        ("words", "processes"),
    ],
)
def test_a_cache_folder_that_cannot_be_used_does_not_end_training(
    make, tmp_path, caplog, there, workers
):
    (tmp_path / "file").touch()
    cache = CacheSpec(disk=tmp_path / there)
    options = {"image": IMAGES["stretch"], "workers": workers}
    if there in ("entries", "words"):
        make(cache=cache, **options)
        (place,) = (tmp_path / there).glob(f"*/{there}")
        place.unlink()
        place.mkdir()
    loader = make(cache=cache, **options)
    assert_same_batches(loader, make(**options))
    assert caplog.text.count("nothing more is cached") == 1
    assert "give CacheSpec(disk=...) another folder" in caplog.text
    assert (loader.stats()["disk"].kept, loader.stats()["disk"].expected) == (0, 0)
    loader.close()


def test_a_file_system_without_fallocate_keeps_entries(make, tmp_path, monkeypatch):
    def emulated(file, start, size):  # as libc does where there is none, such as on NFS
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.ftruncate(file, start + size)

    monkeypatch.setattr(os, "posix_fallocate", emulated)
    with make(cache=CacheSpec(disk=tmp_path / "cache"), image=IMAGES["stretch"]) as loader:
        list(loader)
        assert loader.stats()["disk"].expected == 1


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


def test_a_disk_cache_keeps_to_its_size(make, tmp_path, caplog):
    cache = spec_of("disk", tmp_path, disk_size=60_000)
    options = {"image": IMAGES["stretch"], "epochs": 2}
    loader = make(cache=cache, **options)
    assert_same_batches(loader, make(**options))
    assert 0 < loader.stats()["disk"].kept < 37
    (entries,) = (tmp_path / "cache").glob("*/entries")
    assert entries.stat().st_blocks * 512 <= 60_000 + 4096 * 37
    make(cache=spec_of("disk", tmp_path / "small", disk_size=1000), **options)
    assert caplog.text.count("there is no room for a single entry") == 1


@pytest.mark.parametrize(
    ("transform", "memory"), [(None, 60_000), (darken, 300_000)], ids=["plain", "darkened"]
)
def test_stats_say_where_samples_came_from(make, tmp_path, transform, memory):
    options = {"batch_size": 37, "epochs": 3, "num_workers": 0, "transform": transform}
    loader = make(cache=spec_of("memory and disk", tmp_path), **options)
    list(loader)
    stats = loader.stats()
    assert stats["source"].hits == 37
    assert stats["memory"].hits == 2 * 37
    assert stats["memory"].kept == stats["disk"].kept == 37
    assert stats["disk"].hits == 0
    loader = make(cache=spec_of("memory and disk", tmp_path), **options)
    list(loader)
    stats = loader.stats()
    assert [stats[tier].hits for tier in ("memory", "disk", "source")] == [2 * 37, 37, 0]
    assert [stats[tier].kept for tier in ("memory", "disk")] == [37, 0]
    assert 2 * stats["disk"].bytes == stats["memory"].bytes > 0
    loader = make(cache=spec_of("memory and disk", tmp_path / "small", memory=memory), **options)
    list(loader)
    fast, slow = (loader.stats()[tier] for tier in ("memory", "disk"))
    assert 0 < fast.kept < slow.kept == 37
    assert (fast.hits, slow.hits) == (2 * fast.kept, 2 * (37 - fast.kept))
    assert fast.bytes + slow.bytes == stats["memory"].bytes
    assert (fast.expected, slow.expected) == (fast.kept / 37, (37 - fast.kept) / 37)
    cache = spec_of("memory and disk", tmp_path / "small", memory=memory, policy="next-use")
    assert make(cache=cache, **options).stats()["disk"].expected is None


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


@pytest.mark.parametrize(
    ("cache", "where"),
    [
        (CacheSpec(memory=LOTS), r".*\) decoded in memory, a fixed part"),
        (CacheSpec(device="1MB"), r"67\.4 KB\) decoded on cpu"),
    ],
    ids=["memory", "device"],
)
def test_the_choice_is_said(make, caplog, cache, where):
    caplog.set_level(logging.INFO)
    make(image=ImageSpec(size=24), device="cpu", cache=cache)
    assert re.search(rf"keeps 37 of 37 samples \({where}, .* 100.0% of reads", caplog.text)


def test_a_size_is_the_short_form_of_a_cache_in_memory(make):
    assert CacheSpec("1.5GB") == CacheSpec(memory=1_500_000_000)
    assert CacheSpec(" 20 KB ").memory == 20_000
    assert CacheSpec("20000000").memory == 20_000_000
    for cache in ("8MB", 8_000_000, CacheSpec(memory="8MB")):
        loader = make(cache=cache, epochs=2)
        assert len(list(loader)) == 20
        assert loader.stats()["memory"].kept >= 37  # threads may make one at once
    with pytest.raises(TypeError):
        CacheSpec("1GB", "cache/")


def test_a_cache_that_holds_no_sample_says_so(make, caplog):
    make(cache=CacheSpec(8192, keep="encoded"))
    assert "the cache keeps nothing in memory: no sample of" in caplog.text
    assert "fits into 8,192 bytes; give more, such as '8GB'" in caplog.text


def test_next_uses_are_those_of_the_plan_that_a_state_brings(make, text):
    options = {"text": text(), "batch_size": 1, "buckets": 2, "rank": 0, "world_size": 2}
    options |= {"num_workers": 0, "epochs": 12}
    state = make(**options, group=2).state_dict()

    def hits(**more):
        cache = CacheSpec(memory=40_000, keep="encoded", policy="next-use")
        loader = make(**options, **more, cache=cache)
        loader.load_state_dict(state)
        for _ in loader:
            wait_until(lambda: "datapipe-next-uses" not in {t.name for t in threading.enumerate()})
        return loader.stats()["memory"].hits

    assert hits() == pytest.approx(hits(group=2), abs=3)
