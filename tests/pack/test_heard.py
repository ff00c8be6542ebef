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


@pytest.fixture
def fax(encode, crop):
    """A fax whose lines are damaged here and there, which libtiff decodes all the same."""
    data = bytearray(encode(crop(size=(96, 128)).convert("1"), "TIFF", compression="group4"))
    for place in range(60, 400, 17):
        data[place] ^= 0x55
    return bytes(data)


@pytest.fixture
def broken_zip(encode):
    data = bytearray(encode(kind="TIFF", compression="tiff_adobe_deflate"))
    for place in range(60, 400, 17):
        data[place] ^= 0x55
    return bytes(data)


@pytest.fixture
def broken_exif(encode):
    """A TIFF with an entry whose value is behind the end of the file."""
    data = encode(kind="TIFF", tiffinfo={305: "x" * 40})
    entry = data.index(struct.pack("<HHI", 305, 2, 41))
    return data[: entry + 4] + struct.pack("<I", 10**7) + data[entry + 8 :]


@pytest.fixture
def broken_animation(encode, crop):
    data = encode(crop(), "PNG", save_all=True, append_images=[crop(left=0)])
    place = data.index(b"acTL")
    chunk = b"acTL" + bytes(8)
    return data[:place] + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[place + 16 :]


@pytest.fixture
def huge(encode):
    """More pixels than Pillow takes without a warning, and fewer than the limit."""
    return encode(Image.new("1", (10_000, 9_000)), "PNG")


@pytest.fixture
def raw(make_folder, tmp_path, fax, broken_zip, broken_exif, broken_animation, huge):
    raw = make_folder(tmp_path / "raw", 2)
    files = {
        "b-fax.tif": fax,
        "c-zip.tif": broken_zip,
        "d-exif.tif": broken_exif,
        "e-moving.png": broken_animation,
        "f-huge.png": huge,
    }
    for name, data in files.items():
        (raw / name).write_bytes(data)
    return raw


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
    done = subprocess.run(
        [*command, "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=os.environ | {"PYTHONWARNINGS": "always"},
    )
    assert not [word for word in RAW if word in done.stderr]
    assert "9 images: damaged in part" in done.stdout
    assert "(b-fax.tif, 20/0-fax.tif, 20/1-fax.tif, 20/2-fax.tif, 20/3-fax.tif and 4 more)" in (
        " ".join(done.stdout.split())
    )
