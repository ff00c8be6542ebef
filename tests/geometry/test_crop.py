"""Random parts of images."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.geometry.crop import Draw, least_box, random_box

SIDES = st.integers(1, 100) | st.integers(1, 5000)
AREAS = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda pair: tuple(sorted(pair)))


@given(width=SIDES, height=SIDES, areas=AREAS, key=st.integers(0, 2**64 - 1))
def test_a_part_lies_inside_and_is_large_enough(width, height, areas, key):
    box = random_box(width, height, areas, Draw(key))
    assert 0 <= box.left <= box.left + box.width <= width
    assert 0 <= box.top <= box.top + box.height <= height
    least_height, least_width = least_box(width, height, areas[0])
    assert box.height >= max(1, math.floor(least_height))
    assert box.width >= max(1, math.floor(least_width))


def test_areas_shapes_and_places_are_spread_over_their_ranges():
    boxes = [random_box(1200, 1000, (0.1, 0.5), Draw(key)) for key in range(3000)]
    areas = np.array([box.width * box.height for box in boxes]) / 1_200_000
    shapes = np.log([box.width / box.height for box in boxes])
    places = np.array([box.left / (1200 - box.width) for box in boxes])
    assert areas.min() >= 0.0995
    assert areas.max() <= 0.5005
    assert areas.mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs(shapes).max() <= math.log(4 / 3) + 0.01
    assert shapes.mean() == pytest.approx(0, abs=0.02)
    assert shapes.std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.05)
    assert places.mean() == pytest.approx(0.5, abs=0.03)
    assert places.min() < 0.01
    assert places.max() > 0.99


def test_an_image_too_long_for_any_part_shows_its_middle():
    for key in range(20):
        box = random_box(1000, 30, (0.9, 1.0), Draw(key))
        assert (box.left, box.top, box.width, box.height) == (480, 0, 40, 30)
        box = random_box(30, 1000, (0.9, 1.0), Draw(key))
        assert (box.left, box.top, box.width, box.height) == (0, 480, 30, 40)


def test_equal_keys_draw_equal_parts():
    def some(keys):
        return [random_box(640, 480, (0.1, 1.0), Draw(key)) for key in keys]

    assert some(range(20)) == some(range(20))
    assert len(set(some(range(20)))) == 20
    # Whatever the machine: these numbers must not change, or resumed runs would see other images.
    box = random_box(640, 480, (0.1, 1.0), Draw(7))
    assert (box.left, box.top, box.width, box.height) == (26, 119, 281, 258)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_images_are_mirrored_as_often_as_asked_whatever_part_they_show(probability):
    draws = [Draw(key) for key in range(4000)]
    mirrored = [draw.mirrors(probability) for draw in draws]
    most = 0.03 if 0 < probability < 1 else 0
    assert np.mean(mirrored) == pytest.approx(probability, abs=most)
    if most:
        left = [random_box(400, 400, (0.2, 0.3), draw).left for draw in draws]
        assert abs(np.corrcoef(left, mirrored)[0, 1]) < 0.06
