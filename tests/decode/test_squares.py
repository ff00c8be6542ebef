"""Images that are not alone in their sample: each padded to a square, and one tile."""

import numpy as np
import pytest
import torch
from PIL import Image

from datapipe import DecodeError, ImageSpec
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import array_of
from datapipe.decode.resize import resize
from datapipe.decode.transform import make_transform

from .fitted import decoded, rows_for

COLOUR = (9, 99, 199)
SPEC = ImageSpec(
    size=28,
    resize="tiles",
    grids=((28, 56), (56, 28)),
    patch=14,
    interpolation="bicubic",
    pad_several=COLOUR,
)


def squares():
    made = make_transform(SPEC).of_several
    assert made is not None
    return made


def square_of(image):
    """The tile [28, 28, 3] of an image, and where the image is in it."""
    out = rows_for(squares(), image)
    placement = squares().place(image, array_of(out))
    assert out.shape == (1, 3, 28, 28)
    return out[0].permute(1, 2, 0).numpy(), placement


def noise(width, height):
    values = np.random.default_rng(7).integers(0, 256, (height, width, 3), np.uint8)
    return Decoded(values, width, height)


@pytest.mark.parametrize("size", [(100, 40), (40, 101), (28, 28), (1, 60), (60, 1), (2000, 4200)])
def test_an_image_is_padded_before_it_is_resized(size):
    image = noise(*size)
    longer, (height, width, _) = max(size), image.pixels.shape
    top, left = (longer - height) // 2, (longer - width) // 2
    whole = np.full((longer, longer, 3), COLOUR, np.uint8)
    whole[top : top + height, left : left + width] = image.pixels
    found, placement = square_of(image)
    assert (found == resize(whole, 28, 28, "bicubic")).all()
    assert placement.move(0, 0) == pytest.approx((left * 28 / longer, top * 28 / longer))
    assert placement.move(width, height) == pytest.approx(
        ((left + width) * 28 / longer, (top + height) * 28 / longer)
    )


def test_the_square_of_a_line_is_never_made_whole():
    found, _ = square_of(decoded(Image.new("RGB", (60_000, 1), (255, 255, 255))))  # 10 GB
    assert (found[[0, -1]] == COLOUR).all()


def test_rows_of_tiles_are_refused():
    out = torch.zeros(3, 3, 28, 28, dtype=torch.uint8)
    with pytest.raises(DecodeError, match="index the dataset again"):
        squares().place(noise(100, 40), array_of(out))
