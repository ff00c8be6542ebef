"""Pages and frames of an image file: the first by default, all on request."""

import io
import json

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


def test_pages_are_counted_in_records_and_tars_alike(tmp_path, encode, make_llava, make_tar, jpeg):
    tif = in_colours(encode, "TIFF", COLOURS)
    turns = [{"from": "human", "value": "How many?"}, {"from": "gpt", "value": "Three"}]
    raw = make_llava(tmp_path / "raw", [{"image": "a.tif", "conversations": turns}])
    (tmp_path / "raw" / "a.tif").write_bytes(tif)
    assert pack_dataset(raw, tmp_path / "records", pages="all").images == 3
    make_tar(tmp_path / "tars" / "0.tar", [("0.jpg", jpeg(0)), ("0.tif", tif), ("0.txt", b"a")])
    report = pack_dataset(tmp_path / "tars", tmp_path / "out", pages="all")
    assert (report.samples, report.images) == (1, 4)
    report = pack_dataset(tmp_path / "tars", tmp_path / "first")
    companion, pages = report.notes
    assert "a further image `tif`" in companion
    assert "1 image with several pages or frames, 3 in all" in pages


def test_a_sidecar_has_places_for_all_pages(tmp_path, raw, encode):
    turns = [{"from": "human", "value": "<image>" * 3}, {"from": "gpt", "value": "Three"}]
    (raw / "a.tif").write_bytes(in_colours(encode, "TIFF", COLOURS))
    (raw / "a.json").write_text(json.dumps({"conversations": turns}))
    report = pack_dataset(raw, tmp_path / "out", pages="all")
    assert (report.samples, report.images) == (1, 3)
    assert "user       <image><image><image>" in report.shown[0].lines()[1]


def test_places_of_images_are_compared_with_all_pages(tmp_path, encode, make_llava, rejects):
    turns = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": "One"}]
    names = [f"{name}.tif" for name in "abcd"]
    raw = make_llava(tmp_path / "raw", [{"image": n, "conversations": turns} for n in names])
    for name in names[1:]:
        (tmp_path / "raw" / name).write_bytes(encode(kind="TIFF"))
    (tmp_path / "raw" / "a.tif").write_bytes(in_colours(encode, "TIFF", COLOURS))
    assert pack_dataset(raw, tmp_path / "first").rejected == 0
    report = pack_dataset(raw, tmp_path / "all", pages="all")
    assert (report.samples, report.rejected) == (3, 1)
    (reject,) = rejects(tmp_path / "all")
    assert "3 images" in reject["reason"]


def test_pages_together_may_not_have_too_many_pixels(tmp_path, raw, encode, rejects):
    for number, colours in enumerate((COLOURS, COLOURS[:2], COLOURS[:2], COLOURS[:2])):
        (raw / f"{number}.gif").write_bytes(in_colours(encode, "GIF", colours))
    report = pack_dataset(raw, tmp_path / "out", pages="all", max_pixels=2 * 24 * 16)
    assert report.notes[-1].startswith("3 images with several pages or frames, 6 in all; each is")
    (reject,) = rejects(tmp_path / "out")
    assert reject["reason"] == (
        "3 pages or frames are 1,152 pixels together, more than the limit of 768; take the first "
        "alone with --pages first"
    )


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
