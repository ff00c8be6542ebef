"""Images of formats that no loader reads: converted, or rejected by name."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from datapipe import ImageSpec, make_loader, pack_dataset
from datapipe.decode.image import decode_rgb
from datapipe.errors import DecodeError
from datapipe.index.images.formats import PACKED
from datapipe.index.images.header import EXTENSIONS, probe

from ..campaigns import rare
from .cases import cases

NO_HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
PSD = b"8BPS\0\1" + bytes(6) + b"\0\3\0\0\0\2\0\0\0\2\0\10\0\3" + bytes(14) + bytes(range(12))


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("ext", ["tga", "TGA", "ico", "pcx", "sgi", "dds", "qoi"])
def test_what_pillow_opens_is_packed_as_png_without_loss(put, raw, packed, encode, crop, ext):
    kind = ext.upper()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    image = crop(size=(32, 32))
    options = {"sizes": [(32, 32)]} if kind == "ICO" else {}
    (sample,) = packed(put(raw, {f"a.{ext}": encode(image, kind, **options), "a.txt": "a cat"}))
    assert sample.keys() == {"png", "txt"}
    assert np.abs(pixels(sample["png"]) - np.asarray(image)).max() == 0


def test_transparency_a_palette_and_the_picture_of_a_psd_survive(put, raw, packed, encode, crop):
    image = crop(size=(32, 32))
    image.putalpha(Image.linear_gradient("L").resize((32, 32)))
    palette = crop().quantize(16)
    put(raw, {"a.tga": encode(image, "TGA"), "b.tga": encode(palette, "TGA"), "c.psd": PSD})
    first, second, third = (sample["png"] for sample in packed(raw))
    assert Image.open(io.BytesIO(first)).mode == "RGBA"
    assert Image.open(io.BytesIO(second)).mode == "P"
    white = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert np.abs(decode_rgb(first).astype(int) - np.asarray(white)).max() == 0
    assert (pixels(third) == np.arange(12).reshape(3, 2, 2).transpose(1, 2, 0)).all()


@pytest.mark.parametrize("name", ["a.jpg", "a"])
def test_the_content_tells_a_format_not_the_name(tmp_path, make_llava, packed, encode, crop, name):
    records = [{"id": "1", "image": name, "conversations": [{"from": "human", "value": "Hi"}]}]
    raw = make_llava(tmp_path / "raw", records)
    (raw.parent / name).write_bytes(encode(crop(size=(32, 32)), "ICO", sizes=[(32, 32)]))
    (sample,) = packed(raw, image_root=raw.parent)
    assert "png" in sample


@pytest.mark.parametrize(("ext", "kind", "stored"), cases("other names of stored formats"))
def test_other_names_of_stored_formats_keep_their_bytes(
    raw, packed, encode, crop, ext, kind, stored
):
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    more = {"save_all": True, "append_images": [crop(left=0)]}
    data = encode(crop(), kind, **(more if ext.lower() in ("mpo", "apng") else {}))
    (raw / f"a.{ext}").write_bytes(data)
    assert packed(raw) == [{stored: data}]


def test_of_frames_the_first_is_shown(tmp_path, raw, encode, crop):
    first, frames = crop(), {"save_all": True, "append_images": [crop(left=0)]}
    for name, kind in (("a.apng", "PNG"), ("b.mpo", "MPO")):
        (raw / name).write_bytes(encode(first, kind, **frames))
    pack_dataset(raw, tmp_path / "out")
    image = ImageSpec(size=(32, 48), resize="stretch", normalize=None)
    loader = make_loader(tmp_path / "out", batch_size=2, image=image, num_workers=0, shuffle=False)
    (batch,) = loader
    shown = batch["pixel_values"].permute(0, 2, 3, 1).numpy().astype(int)
    assert np.abs(shown[0] - np.asarray(first)).max() == 0
    assert np.abs(shown[1] - np.asarray(first)).mean() < 6


@pytest.mark.parametrize(("name", "content", "reason"), cases("images that are not packed"))
def test_what_is_not_packed_is_rejected_with_its_format(
    tmp_path, make_folder, rejects, name, content, reason
):
    raw = make_folder(tmp_path / "raw", 1)
    (raw / name).write_bytes(json.loads(content).encode("latin-1"))
    pack_dataset(raw, tmp_path / "out", max_rejects=1)
    (reject,) = rejects(tmp_path / "out")
    assert (reject["source"], reject["reason"]) == (name, reason)


def test_without_pillow_heif_the_reject_says_how_to_install_it(
    tmp_path, make_folder, put, rejects, monkeypatch
):
    (tmp_path / "pillow_heif.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    # b.jpg is as some phones and converters name them.
    raw = put(make_folder(tmp_path / "raw", 1), {"a.HEIC": NO_HEIC, "b.jpg": NO_HEIC})
    pack_dataset(raw, tmp_path / "out", max_rejects=2)
    assert [reject["reason"] for reject in rejects(tmp_path / "out")] == 2 * [
        "HEIC images need pillow-heif: install it with pip install 'datapipe-vlm[heic]', or "
        "convert them to JPEG"
    ]


def heic(image, **options):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    buffer = io.BytesIO()
    image.save(buffer, "HEIF", quality=95, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("ext", ["heic", "HEIC", "heif", "jpg"])
def test_heic_is_packed_as_jpeg(tmp_path, raw, crop, members, ext):
    image = crop(size=(96, 64))
    (raw / f"a.{ext}").write_bytes(heic(image))
    report = pack_dataset(raw, tmp_path / "out")
    (sample,) = members(tmp_path / "out").values()
    assert sample.keys() == {"jpg"}
    assert np.abs(pixels(sample["jpg"]) - np.asarray(image)).mean() < 6
    assert report.notes == (f"1 image: HEIC converted to JPEG of quality 95 (a.{ext})",)
    assert pack_dataset(raw, tmp_path / "out").finished_before


def test_damaged_and_too_large_heic_is_rejected_with_its_format(
    tmp_path, crop, make_folder, rejects
):
    raw = make_folder(tmp_path / "raw", 1)
    damaged = heic(crop(size=(48, 32)))
    (raw / "a.heic").write_bytes(damaged[: len(damaged) // 2])
    (raw / "b.heic").write_bytes(heic(crop(size=(96, 64))))
    pack_dataset(raw, tmp_path / "out", max_rejects=2, max_pixels=96 * 64 - 1)
    first, second = (reject["reason"] for reject in rejects(tmp_path / "out"))
    assert "HEIC is damaged" in first
    assert "more than the limit of 6,143" in second


@pytest.mark.parametrize("orientation", [1, 2, 5, 6, *map(rare, (3, 4, 7, 8))])
def test_heic_is_upright_once(raw, packed, crop, orientation):
    image = crop(size=(96, 64))
    block = Image.Exif()
    block[0x0112] = orientation
    turned = image.copy()
    turned.info["exif"] = block.tobytes()
    expected = ImageOps.exif_transpose(turned)
    (raw / "a.heic").write_bytes(heic(image, exif=block.tobytes()))
    (sample,) = packed(raw)
    shown = pixels(sample["jpg"])
    assert shown.shape[1::-1] == expected.size
    assert np.abs(shown - np.asarray(expected)).mean() < 6
    assert Image.open(io.BytesIO(sample["jpg"])).getexif().get(0x0112, 1) == 1


def test_worker_processes_encode_anew_to_the_same_bytes(tmp_path, raw, encode, crop, contents):
    for number in range(150):
        (raw / f"{number:03d}.tga").write_bytes(encode(crop(left=50 + number), "TGA"))
    one = pack_dataset(raw, tmp_path / "one", workers=1)
    two = pack_dataset(raw, tmp_path / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert one.notes == two.notes
    assert one.notes[0].startswith("150 images: TGA converted to PNG")


def test_avif_says_what_to_do_where_pillow_does_not_read_it(monkeypatch):
    monkeypatch.setattr("datapipe.index.images.header.OPENED", ("PNG",))
    with pytest.raises(DecodeError, match=r"it is AVIF, .* pip install --upgrade pillow"):
        probe(b"\0\0\0\x20ftypavif" + bytes(40))


def test_the_documentation_lists_every_extension():
    page = Path(__file__).parents[2] / "docs" / "formats.md"
    listed = set(re.findall(r"`(\w+)`", page.read_text().partition("## Images")[2]))
    assert listed >= EXTENSIONS | PACKED
