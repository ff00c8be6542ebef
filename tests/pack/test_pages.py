"""Pages and frames of an image file: the first by default, all on request."""

import io

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from datapipe import ImageSpec, make_loader, pack_dataset

ANIMATED = [("TIFF", "tif"), ("GIF", "gif"), ("PNG", "png"), ("WEBP", "webp"), ("AVIF", "avif")]


def in_colours(encode, kind, colours, **options):
    """An image file with a page of each colour."""
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    first, *others = (Image.new("RGB", (24, 16), colour) for colour in colours)
    lossless = {"lossless": True} if kind == "WEBP" else {}
    return encode(first, kind, save_all=True, append_images=others, **lossless, **options)


COLOURS = ("red", "lime", "blue")


def shades(sample):
    """The middle of each image of a sample, in order."""
    names = sorted(name for name in sample if name != "txt")
    names = sorted(names, key=lambda name: (name.count("."), name))
    return [np.asarray(Image.open(io.BytesIO(sample[n])).convert("RGB"))[8, 12] for n in names]


@pytest.mark.parametrize(("kind", "ext"), ANIMATED)
def test_the_first_page_or_all_become_images_of_a_sample(tmp_path, raw, encode, members, kind, ext):
    (raw / f"0.{ext}").write_bytes(in_colours(encode, kind, COLOURS))
    (raw / "0.txt").write_text("three pages")
    (raw / f"one.{ext}").write_bytes(encode(kind=kind))
    report = pack_dataset(raw, tmp_path / "first")
    assert report.notes == (
        "1 image with several pages or frames, 3 in all; the first of each is taken (--pages all "
        f"makes each an image of its sample): 0.{ext}",
    )
    assert report.images == 2
    report = pack_dataset(raw, tmp_path / "out", pages="all")
    assert report.images == 4
    assert report.shown[0].lines()[0] == f"0.{ext}: 3 images"
    assert report.notes == (
        "1 image with several pages or frames, 3 in all; each is an image of its sample, in "
        f"order: 0.{ext}",
    )
    sample, _ = members(tmp_path / "out").values()
    assert list(sample) == ["png", "1.png", "2.png", "txt"]
    expected = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    assert np.abs(np.array(shades(sample)).astype(int) - expected).max() < 12
    image = ImageSpec(size=16, resize="stretch", normalize=None)
    with make_loader(tmp_path / "out", batch_size=2, image=image, num_workers=0) as loader:
        assert len(next(iter(loader))["pixel_values"]) == 4


def test_reduced_copies_and_second_pictures_are_no_pages(tmp_path, raw, encode, crop):
    buffer = io.BytesIO()
    with TiffImagePlugin.AppendingTiffWriter(buffer, True) as tif:
        crop().save(tif, "TIFF")
        tif.newFrame()
        reduced = TiffImagePlugin.ImageFileDirectory_v2()
        reduced[254] = 1
        crop(size=(24, 16)).save(tif, "TIFF", tiffinfo=reduced)
        tif.newFrame()
    assert Image.open(io.BytesIO(buffer.getvalue())).n_frames == 2
    (raw / "overview.tif").write_bytes(buffer.getvalue())
    (raw / "eyes.mpo").write_bytes(
        encode(crop(), "MPO", save_all=True, append_images=[crop(left=0)])
    )
    assert pack_dataset(raw, tmp_path / "first").notes == ()
    assert pack_dataset(raw, tmp_path / "all", pages="all").images == 2


def test_pages_of_a_turned_image_are_upright(tmp_path, raw, encode, crop, members):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = in_colours(encode, "PNG", COLOURS, exif=exif)
    (raw / "a.png").write_bytes(data)
    pack_dataset(raw, tmp_path / "out", pages="all")
    (sample,) = members(tmp_path / "out").values()
    assert {Image.open(io.BytesIO(data)).size for data in sample.values()} == {(16, 24)}
