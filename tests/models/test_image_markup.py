"""Markup between the tokens of an image is counted with the image, and belongs to the state."""

from dataclasses import replace

import pytest

import datapipe
from datapipe import ImageMarkup, ImageSpec

from .checkpoints import CASES
from .conftest import loader_of

PIXTRAL = CASES["mistral-community/pixtral-12b"]
IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return PIXTRAL.save(tmp_path_factory.mktemp("pixtral"))


def test_tiles_take_markup_that_a_user_writes(shards, folder):
    _, text = datapipe.specs_for(folder)
    markup = ImageMarkup(start="[INST]", cell="{number}", between_cells=BREAK, alone="", end=END)
    image = ImageSpec(resize="tiles", size=32, tiles=4, patch=16, thumbnail=False)
    text = replace(text, image_markup=markup)
    loader = loader_of(shards, None, image=image, text=text, batch_size=1)
    tokenizer = PIXTRAL.make().tokenizer
    for batch in loader:
        if "pixel_values" not in batch:
            continue
        written = tokenizer.decode(batch["input_ids"][0])
        assert written.count(IMAGE) == 4 * len(batch["pixel_values"])
        if len(batch["pixel_values"]) == 4 and written.count(END) == 1:
            tile = IMAGE * 4
            rows = f"1{tile}{BREAK}2{tile}3{tile}{BREAK}4{tile}"
            wide = BREAK.join(f"{number}{tile}" for number in (1, 2, 3, 4))
            tall = wide.replace(BREAK, "")
            assert any(f"[INST]{grid}{END}" in written for grid in (rows, wide, tall))


def test_markup_belongs_to_the_state_of_a_run(shards, folder):
    image, text = datapipe.specs_for(folder)
    options = {"image": image, "batch_size": 2}
    state = loader_of(shards, None, text=text, **options).state_dict()
    swapped = replace(text.image_markup, between_rows=END, end=BREAK)
    other = loader_of(shards, None, text=replace(text, image_markup=swapped), **options)
    with pytest.raises(datapipe.StateMismatch):
        other.load_state_dict(state)
