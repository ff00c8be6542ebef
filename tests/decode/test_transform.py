"""Images in their rows: shapes as planned, and points where the placement says."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import pad

from datapipe.decode.forms.frame import FrameTransform
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import array_of
from datapipe.decode.resize import resize
from datapipe.decode.spec import ImageSpec, VideoSpec
from datapipe.decode.transform import Draw, make_transform
from datapipe.errors import DecodeError
from datapipe.geometry.tiles import best_grid, scale_grid, scaled_grid, tile_grid

from ..models.video_processors import qwen3_vl_resize
from .fitted import decoded, photo, place, put_together, rows_for, size_of

GRIDS = ((28, 56), (56, 28), (56, 56), (84, 28))
SPECS = {
    "stretch": ImageSpec(size=(20, 31), patch=5),
    "pad": ImageSpec(size=(30, 31), resize="pad", normalize="clip", patch=14),
    "crop": ImageSpec(size=24, resize="crop", patch=8),
    "crop from": ImageSpec(size=(20, 24), resize="crop", crop_from=28, patch=4),
    "shortest": ImageSpec(size=20, resize="shortest", normalize="clip", patch=5, merge=2),
    "dynamic": ImageSpec(resize="dynamic", patch=4, merge=2, min_pixels=200, max_pixels=9000),
    "native": ImageSpec(
        resize="native", patch=7, merge=2, temporal=2, min_pixels=400, max_pixels=9000
    ),
    "plain native": ImageSpec(
        resize="native", patch=5, normalize="siglip", min_pixels=25, max_pixels=9000
    ),
    "tiles": ImageSpec(size=16, resize="tiles", tiles=7, patch=8, normalize="imagenet"),
    "tiles by scale": ImageSpec(size=16, resize="tiles", tiles=7, patch=8, tiles_by="scale"),
    "tiles of a corner": ImageSpec(
        size=16, resize="tiles", tiles=7, patch=8, tiles_by="scale", fill=(9, 99, 199)
    ),
    "no thumbnail": ImageSpec(size=16, resize="tiles", tiles=4, thumbnail=False, patch=4),
    "longest": ImageSpec(resize="dynamic", longest=90, patch=4, merge=2, normalize="clip"),
    "scaled tiles": ImageSpec(
        size=16, resize="tiles", longest=48, patch=8, interpolation="lanczos", normalize="siglip"
    ),
    "anyres": ImageSpec(size=28, resize="tiles", grids=GRIDS, patch=14, normalize="clip"),
    "anyres, scaled": ImageSpec(
        size=28, resize="tiles", grids=GRIDS, patch=14, anyres_max=2, pad_several=(9, 99, 199)
    ),
}
SIDES = st.one_of(st.integers(1, 40), st.integers(1, 250))


def gradient(width, height):
    """Red grows by one level a pixel to the right, green by one a pixel down."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width)
    pixels[..., 1] = np.arange(height)[:, None]
    pixels[..., 2] = 100
    return Decoded(pixels, width, height)


def grid_of(spec, image):
    """Tiles down and across."""
    if spec.grids is not None:
        across, down = best_grid(*size_of(image), grids=spec.grids)
        return int(down[0]) // spec.height, int(across[0]) // spec.height
    if spec.longest is not None:
        across, down = scaled_grid(*size_of(image), longest=spec.longest, tile=spec.height)
    else:
        rule = tile_grid if spec.tiles_by == "aspect" else scale_grid
        across, down = rule(*size_of(image), tile=spec.height, max_tiles=spec.most_tiles)
    return int(down[0]), int(across[0])


@given(name=st.sampled_from(sorted(SPECS)), width=SIDES, height=SIDES)
def test_every_row_is_filled_and_facts_say_what_was_made(name, width, height):
    spec = dataclasses.replace(SPECS[name], dtype=torch.float32)
    assume(spec.resize != "native" or max(width, height) <= 200 * min(width, height))
    image = gradient(width, height)
    out, _, facts = place(spec, image)
    assert not out.isnan().any()
    tokens = int(make_transform(spec).tokens(*size_of(image))[0])
    assert tokens > 0
    if spec.resize == "native":
        frames, down, across = facts["image_grid_thw"][0].tolist()
        assert (frames, down * across) == (1, len(out))
        assert tokens == len(out) // spec.merge**2
    if spec.resize in ("shortest", "dynamic"):
        down, across = out.shape[2:]
        assert facts["image_sizes"].tolist() == [[down, across]]
        larger = torch.full((1, 3, down + 3, across + 2), torch.nan)
        make_transform(spec).place(image, larger.numpy())
        assert torch.equal(larger, pad(out, (0, 2, 0, 3)))  # beside a larger image
    if spec.resize not in ("native", "tiles"):  # what is over is left out, as by a convolution
        down, across = (side // (spec.patch * spec.merge) for side in out.shape[2:])
        assert tokens == down * across
    if spec.resize == "tiles" and spec.grids is None:
        down, across = grid_of(spec, image)
        assert len(out) == down * across + (spec.thumbnail and down * across > 1)
        assert tokens == len(out) * (spec.height // spec.patch_side) ** 2
    if spec.grids is not None:
        assert facts["image_sizes"].tolist() == [[height, width]]


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=20)
@given(sizes=st.lists(st.tuples(SIDES, SIDES), max_size=8))
def test_no_and_many_images_are_sized_as_each_by_itself(name, sizes):
    transform = make_transform(SPECS[name])
    widths, heights = np.array(sizes, np.int64).reshape(-1, 2).T
    alone = [(np.array([w]), np.array([h])) for w, h in sizes]
    for count in (transform.rows, transform.tokens):
        counted = count(widths, heights)
        assert counted.dtype == np.int64
        assert counted.tolist() == [int(count(*one)[0]) for one in alone]
    for key, values in transform.facts(widths, heights).items():
        assert values.dtype == torch.int64
        assert values.tolist() == [transform.facts(*one)[key][0].tolist() for one in alone]
    shape = transform.row_shape(widths, heights)
    assert min(shape) > 0
    if sizes:
        shapes = [transform.row_shape(*one) for one in alone]
        assert shape == tuple(np.max(shapes, axis=0).tolist())


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(SPECS)),
    width=st.integers(20, 250),
    height=st.integers(20, 250),
    key=st.none() | st.integers(0, 10**6),
)
def test_points_lie_where_the_placement_says(name, width, height, key):
    spec = dataclasses.replace(SPECS[name], dtype=torch.uint8, normalize=None)
    if spec.resize in ("stretch", "crop"):
        spec = dataclasses.replace(spec, random_crop=(0.3, 1.0), flip=0.5)
    image = gradient(width, height)
    out, where, facts = place(spec, image, None if key is None else Draw(key))
    fitted = put_together(spec, out, facts, grid_of(spec, image))
    # The original's coordinates of the middle of each fitted pixel; red and green name them too.
    down, across = fitted.shape[1:]
    x = (np.arange(across) + 0.5 - where.left) / where.scale_x
    y = (np.arange(down) + 0.5 - where.top) / where.scale_y
    red, green, blue = fitted.numpy().astype(float)
    if not spec.fills_borders:
        # Nothing but the image is shown.
        assert -1 < x.min() < x.max() < width + 1 or across == 1
        assert -1 < y.min() < y.max() < height + 1 or down == 1
    # Filters blend the neighbours of a pixel, at the edges of what is shown those of one side.
    blend_x, blend_y = 1 + 1 / abs(where.scale_x), 1 + 1 / where.scale_y
    shown_x = x.min() - 0.5 / abs(where.scale_x), x.max() + 0.5 / abs(where.scale_x)
    shown_y = y.min() - 0.5 / where.scale_y, y.max() + 0.5 / where.scale_y
    inside = np.ix_(
        (y > max(0, shown_y[0]) + blend_y) & (y < min(height, shown_y[1]) - blend_y),
        (x > max(0, shown_x[0]) + blend_x) & (x < min(width, shown_x[1]) - blend_x),
    )
    assert (blue[inside] == 100).all()
    most = 2.01 if spec.longest else 1.01  # grey levels: some are resized twice
    assert np.abs(red[inside] + 0.5 - x[inside[1]]).max(initial=0) <= most
    assert np.abs(green[inside] + 0.5 - y[inside[0]]).max(initial=0) <= most
    if spec.random_crop is None or key is None:
        # The corners: all of the image is there, or its centre.
        left, top = where.move(0, 0)
        right, bottom = where.move(width, height)
        if spec.resize == "crop":
            assert left <= 1e-9
            assert right >= across - 1e-9
            assert left + right == pytest.approx(across, abs=1.5)
            assert top + bottom == pytest.approx(down, abs=1.5)
        else:
            assert -1e-9 <= left < right <= across + 1e-9
            assert -1e-9 <= top < bottom <= down + 1e-9


@pytest.mark.parametrize("name", SPECS)
def test_an_image_that_the_index_knows_as_another_size_is_refused(name):
    form, image = make_transform(SPECS[name]), gradient(100, 60)
    for transform in filter(None, (form, form.of_several)):
        out = rows_for(transform, image)
        for wrong in (out[:0], torch.cat([out, out]), out[..., :-1]):
            with pytest.raises(DecodeError, match=r"100x60 pixels, which take .* index the data"):
                transform.place(image, wrong.contiguous().numpy())


@pytest.mark.parametrize(
    ("options", "colour"),
    [
        ({}, [0, 0, 0]),
        ({"fill": (1, 2, 3)}, [1, 2, 3]),
        ({"normalize": "clip"}, pytest.approx([0, 0, 0], abs=0.02)),  # the mean, to a grey level
    ],
)
def test_the_padding_of_a_canvas_has_the_colour_asked_for(options, colour):
    out, _, _ = place(ImageSpec(size=28, resize="tiles", grids=GRIDS, **options), gradient(200, 20))
    assert out[1, :, 0, 0].tolist() == colour


@pytest.mark.parametrize("name", SPECS)
def test_pixels_of_any_strides_are_the_same_image(name):
    pixels = np.array(photo("chelsea.png").crop((100, 100, 190, 160)))
    turned = np.ascontiguousarray(pixels[::-1, ::-1])[::-1, ::-1]
    of_four = np.concatenate([pixels, pixels[..., :1]], axis=2)[..., :3]
    inside = np.pad(pixels, ((7, 9), (5, 5), (0, 0)))[7:-9, 5:-5]
    read_only = pixels.copy()
    read_only.flags.writeable = False
    expected, _, _ = place(SPECS[name], Decoded(pixels, 90, 60))
    for other in (turned, of_four, inside, read_only, np.asfortranarray(pixels)):
        out, _, _ = place(SPECS[name], Decoded(other, 90, 60))
        assert torch.equal(out, expected)


def test_a_line_is_refused_where_a_row_has_no_room_for_all_of_it():
    options = {"size": 16, "patch": 8, "min_pixels": 256, "max_pixels": 1024, "tiles": 3}
    spec = ImageSpec(resize="naflex", thumbnail=False, **options)
    pixels, _, _ = place(spec, gradient(900, 8))  # each tile is a third
    assert pixels.shape == (3, 16, 192)
    with pytest.raises(DecodeError, match="become 42 patches, and resize='naflex' has room for 16"):
        place(dataclasses.replace(spec, thumbnail=True), gradient(900, 8))


@pytest.mark.parametrize("name", SPECS)
def test_scaled_decoding_reads_less_and_shows_the_same(name, encode):
    photograph = photo("astronaut.png").resize((1000, 800), Image.Resampling.BICUBIC)
    data = encode(photograph, quality=90)
    spec = dataclasses.replace(SPECS[name], dtype=torch.float32)
    whole = make_transform(spec).decode(data)
    part = make_transform(dataclasses.replace(spec, scaled_decode=True)).decode(data)
    assert whole.pixels.shape == (800, 1000, 3)
    assert part.pixels.shape in {(400, 500, 3), (200, 250, 3), (100, 125, 3)}
    assert (part.width, part.height) == (1000, 800)
    expected, where, _ = place(spec, whole)
    actual, where_too, _ = place(spec, part)
    std = min(spec.mean_std[1]) if spec.mean_std else 1
    # Small differences in general, while fine lines may look quite different.
    assert (actual - expected).abs().mean() * 255 * std < 4
    assert where_too == pytest.approx(where)


@pytest.mark.parametrize(
    ("options", "size", "width"),
    [
        *(
            ({"size": 120, "random_crop": (least, 1.0)}, (1600, 1200), width)
            for least, width in ((1.0, 200), (0.25, 400), (0.08, 800), (0.005, 1600))
        ),
        # In its canvas it is 6 pixels high, in the tile that shows the whole 28.
        ({"size": 28, "resize": "tiles", "grids": GRIDS}, (1000, 100), 500),
    ],
)
def test_scaled_decoding_leaves_enough_for_the_smallest_crop_and_the_tile_of_the_whole(
    encode, options, size, width
):
    transform = make_transform(ImageSpec(**options, scaled_decode=True))
    assert transform.decode(encode(photo("astronaut.png").resize(size))).pixels.shape[1] == width


def test_random_crops_of_a_scaled_image_lie_where_they_do_in_the_whole():
    spec = ImageSpec(size=60, random_crop=(0.2, 0.5), flip=0.5)
    whole = decoded(photo("astronaut.png"))
    half = Decoded(np.array(photo("astronaut.png").reduce(2)), 512, 512)
    for key in range(10):
        expected, where, _ = place(spec, whole, Draw(key))
        actual, where_too, _ = place(spec, half, Draw(key))
        assert (actual.float() - expected.float()).abs().mean() < 5
        corner, corner_too = where.move(250, 250), where_too.move(250, 250)
        assert corner == pytest.approx(corner_too, abs=0.5)


def test_what_is_random_is_decided_by_the_draw_alone():
    spec = ImageSpec(size=40, resize="crop", random_crop=(0.3, 1.0), flip=0.5)
    image = decoded(photo("coffee.png"))
    first = [place(spec, image, Draw(key)) for key in range(8)]
    again = [place(spec, image, Draw(key)) for key in range(8)]
    for (out, where, _), (out_too, where_too, _) in zip(first, again, strict=True):
        assert torch.equal(out, out_too)
        assert where == where_too
    assert len({where for _, where, _ in first}) == 8
    assert {where.scale_x < 0 for _, where, _ in first} == {True, False}
    # Without a draw: as it is looked at when a model is evaluated.
    plain = dataclasses.replace(spec, random_crop=None, flip=0.0)
    assert torch.equal(place(spec, image)[0], place(plain, image)[0])
    assert torch.equal(place(plain, image, Draw(3))[0], place(plain, image)[0])


def test_cropping_a_line_needs_no_mountain_of_memory():
    line = np.zeros((1, 60_000, 3), np.uint8)
    line[:, 29_000:31_000] = 200
    spec = ImageSpec(size=336, resize="crop")
    for image in (Decoded(line, 60_000, 1), Decoded(line.transpose(1, 0, 2).copy(), 1, 60_000)):
        out, where, _ = place(spec, image)
        assert (out == 200).all()
        assert where.move(image.width / 2, image.height / 2) == pytest.approx((168, 168), abs=200)


def square_of(image):
    """The tile [28, 28, 3] of one of several images, and where the image is in it."""
    transform = make_transform(SPECS["anyres, scaled"]).of_several
    out = rows_for(transform, image)
    placement = transform.place(image, array_of(out))
    return out[0].permute(1, 2, 0).numpy(), placement


@pytest.mark.parametrize("size", [(100, 40), (40, 101), (28, 28), (1, 60), (60, 1), (2000, 4200)])
def test_one_of_several_images_is_padded_to_a_square_before_it_is_resized(size):
    image, longer, (width, height) = gradient(*size), max(size), size
    top, left = (longer - height) // 2, (longer - width) // 2
    whole = np.full((longer, longer, 3), (9, 99, 199), np.uint8)
    whole[top : top + height, left : left + width] = image.pixels
    found, placement = square_of(image)
    assert (found == resize(whole, 28, 28)).all()
    assert placement.move(0, 0) == pytest.approx((left * 28 / longer, top * 28 / longer))
    assert placement.move(width, height) == pytest.approx(
        ((left + width) * 28 / longer, (top + height) * 28 / longer)
    )


def test_the_square_of_a_line_is_never_made_whole():
    found, _ = square_of(decoded(Image.new("RGB", (60_000, 1), (255, 255, 255))))  # 10 GB
    assert (found[[0, -1]] == (9, 99, 199)).all()


def test_frames_of_videos_from_a_cache_are_written_as_decoded_ones():
    spec = ImageSpec.preset("qwen2-vl", video=VideoSpec(min_pixels=128 * 784))
    frames = [
        decoded(photo("coffee.png").crop((left, 0, left + 64, 48))) for left in range(0, 9, 3)
    ]
    transform = FrameTransform(spec, 3)
    plain = FrameTransform(dataclasses.replace(spec, normalize=None), 3)
    rows = int(transform.rows(*size_of(frames[0]))[0])
    expected, found = torch.full((2, 2, rows, 3 * 2 * spec.patch_side**2), torch.nan)
    for number, frame in enumerate(frames):
        transform.place(frame, transform.part(expected[number // 2].numpy(), number))
        values = np.empty(plain.own_shape(64, 48), np.uint8)
        plain.place(frame, values.reshape(rows, 3, 1, -1))
        transform.finish(values, transform.part(found[number // 2].numpy(), number))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("limits", ["frame", "video"])
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("size", [(640, 480), (90, 200), (23, 17)], ids=str)
def test_frames_keep_the_limits_of_videos(size, count, limits):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    (width, height), both = size, {"min_pixels": 90_000, "max_pixels": 150_000}
    spec = ImageSpec.preset("qwen2-vl", video=VideoSpec(**both, limits=limits))
    if limits == "frame":
        high, wide = smart_resize(height, width, 28, *both.values())
    else:
        high, wide = qwen3_vl_resize(count, height, width, 2, 28, *both.values())
    grid = FrameTransform(spec, count).facts(np.array([width]), np.array([height]))
    assert grid["video_grid_thw"].tolist() == [[-(-count // 2), high // 14, wide // 14]]
