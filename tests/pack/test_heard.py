"""Messages of image libraries while packing are named and counted, and never printed raw."""

import os
import struct
import subprocess
import sys
import warnings
import zlib

import pytest
from PIL import Image

from datapipe import pack_dataset
from datapipe.pack.workers.library_messages import (
    BROKEN_ANIMATION,
    DAMAGED_METADATA,
    DAMAGED_PIXELS,
)

RAW = ("Warning", "Fax4Decode", "ZIPDecode", "Bad code word", "PIL/", "Corrupt", "decompression")


def flipped(data):
    """Bits flipped here and there."""
    data = bytearray(data)
    for place in range(60, 400, 17):
        data[place] ^= 0x55
    return bytes(data)


@pytest.fixture
def raw(make_folder, tmp_path, encode, crop, put):
    """Two pairs, and images that libraries speak of while they decode them, or give them up."""
    # A fax whose lines are damaged, which libtiff decodes all the same.
    fax = flipped(encode(crop(size=(96, 128)).convert("1"), "TIFF", compression="group4"))
    packed = flipped(encode(kind="TIFF", compression="tiff_adobe_deflate"))
    # An entry of a TIFF whose value is behind the end of the file.
    tagged = encode(kind="TIFF", tiffinfo={305: "x" * 40})
    entry = tagged.index(struct.pack("<HHI", 305, 2, 41))
    moving = encode(crop(), "PNG", save_all=True, append_images=[crop(left=0)])
    place, frames = moving.index(b"acTL"), b"acTL" + bytes(8)
    frames += struct.pack(">I", zlib.crc32(frames))
    moving = moving[:place] + frames + moving[place + 16 :]
    files = {
        "b-fax.tif": fax,
        "c-zip.tif": packed,
        "d-exif.tif": tagged[: entry + 4] + struct.pack("<I", 10**7) + tagged[entry + 8 :],
        "e-moving.png": moving,
        # More pixels than Pillow takes without a warning, and fewer than the limit.
        "f-huge.png": encode(Image.new("1", (10_000, 9_000)), "PNG"),
    }
    return put(make_folder(tmp_path / "raw", 2), files)


def test_nothing_reaches_the_terminal_and_what_matters_is_told(tmp_path, raw, rejects, capfd):
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("always")
        report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    out, err = capfd.readouterr()
    assert not [word for word in RAW if word in out + err]
    assert not printed
    assert report.notes == (
        f"1 image: {DAMAGED_PIXELS} (b-fax.tif)",
        f"1 image: {DAMAGED_METADATA} (d-exif.tif)",
        f"1 image: {BROKEN_ANIMATION} (e-moving.png)",
    )
    assert pack_dataset(raw, tmp_path / "dry", max_rejects=1, dry_run=True).notes == report.notes
    (reject,) = rejects(tmp_path / "out")
    assert reject["source"] == "c-zip.tif"
    assert reject["reason"].startswith("OSError: decoder error -2 (Decoding error at scanline 0")


def test_worker_processes_print_nothing_either(tmp_path, raw, make_folder):
    for number in range(30):
        make_folder(raw / f"{number:02d}", 5)
    for number in range(8):
        (raw / "20" / f"{number}-fax.tif").write_bytes((raw / "b-fax.tif").read_bytes())
    command = [sys.executable, "-m", "datapipe", "pack", str(raw), str(tmp_path / "out")]
    env = os.environ | {"PYTHONWARNINGS": "always"}
    done = subprocess.run(
        [*command, "--workers", "2"], capture_output=True, text=True, check=True, env=env
    )
    assert not [word for word in RAW if word in done.stderr]
    said = " ".join(done.stdout.split())
    assert "9 images: damaged in part" in said
    names = ", ".join(f"20/{number}-fax.tif" for number in range(4))
    assert f"(b-fax.tif, {names} and 4 more)" in said
