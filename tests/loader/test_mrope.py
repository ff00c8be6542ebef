"""Positions along three axes: as transformers counts them, padded, packed, cut and left out."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.loader.batch.collate import mrope_positions
from datapipe.testing import assert_same_batches
from examples.huggingface_models import make_tiny

IMAGE = ImageSpec(
    resize="native", patch=8, merge=2, temporal=2, min_pixels=256, max_pixels=4096, mrope=True
)
META = ("key", "valid", "images_per_sample")


def one_by_one(parts):
    """Frame, row and column of tokens: so many of text, or an image of rows and columns."""
    found, position = [], 0
    for part in parts:
        if isinstance(part, int):
            found += [[position + at] * 3 for at in range(part)]
            position += part
        else:
            places = product(*map(range, part))
            found += [[position, position + row, position + column] for row, column in places]
            position += max(part)
    return found


grids = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(st.lists(st.integers(0, 9) | grids, max_size=9))
def test_positions_are_those_of_a_token_at_a_time(parts):
    lengths = [part if isinstance(part, int) else part[0] * part[1] for part in parts]
    starts = [sum(lengths[:at]) for at, part in enumerate(parts) if not isinstance(part, int)]
    shapes = [part for part in parts if not isinstance(part, int)]
    positions = mrope_positions(
        sum(lengths), np.array(starts, np.int64), np.array(shapes, np.int64).reshape(-1, 2)
    )
    assert positions.dtype == np.int64
    assert positions.shape == (3, sum(lengths))
    assert positions.T.tolist() == one_by_one(parts)


@pytest.fixture(scope="module")
def rope_index(vocabulary):
    """`get_rope_index` of a Qwen2-VL, over a padded batch."""
    pytest.importorskip("transformers")
    image_id = vocabulary.token_to_id("<|image_pad|>")
    model, _ = make_tiny("qwen2-vl", vocabulary)

    def positions(batch):
        return model.model.get_rope_index(
            batch["input_ids"],
            mm_token_type_ids=(batch["input_ids"] == image_id).int(),
            image_grid_thw=batch.get("image_grid_thw"),
            attention_mask=batch["attention_mask"],
        )[0]

    return positions


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 5, "world_size": 2, "rank": 1},
        {"max_tokens": 400},
        {"batch_size": 4, "where": "images == 0"},
        {"batch_size": 4, "where": "images == 2"},
    ],
    ids=str,
)
def test_padded_positions_are_those_of_transformers(make, qwen, rope_index, options):
    batches = list(make(image=IMAGE, text=qwen(), meta=META, **options))
    for batch in batches:
        assert batch["position_ids"].dtype == torch.int64
        assert torch.equal(batch["position_ids"], rope_index(batch))
    images = {count for batch in batches for count in batch["images_per_sample"].tolist()}
    assert images == ({int(options["where"][-1])} if "where" in options else {0, 1, 2})


def test_positions_of_cut_samples_are_those_of_transformers(make, qwen, rope_index):
    lost = kept = 0
    for limit in (20, 30, 45):
        spec = qwen(max_length=limit, overlong="truncate")
        for batch in make(image=IMAGE, text=spec, batch_size=4, meta=META):
            assert torch.equal(batch["position_ids"], rope_index(batch))
            images = batch["images_per_sample"]
            lost += int((images == 0).sum())
            kept += int((images == 1).sum())
    assert lost > 15
    assert kept > 15


@pytest.mark.parametrize(
    "options",
    [
        {"pack": 200},
        {"pack": 160, "batch_size": 2},
        {"pack": datapipe.PackSpec(256, multiple_of=8)},
        {"pack": datapipe.PackSpec(256, static_shapes=True, max_patches=256)},
    ],
    ids=str,
)
def test_packed_positions_are_those_of_each_sample_padded(make, text, options):
    both = {"image": IMAGE, "text": text(image_tokens="native"), "meta": META}
    alone = {batch["key"][0]: batch for batch in make(batch_size=1, **both)}
    seen = []
    for batch in make(**both, **options):
        positions = batch["position_ids"]
        assert positions.dtype == torch.int64
        assert positions.shape == (4, 1, batch["input_ids"].shape[1])
        bounds = list(pairwise(batch["cu_seq_lens_q"].tolist()))
        for number, (start, stop) in enumerate(bounds):
            counted = torch.arange(stop - start)
            assert torch.equal(positions[0, 0, start:stop], counted)
            if number >= len(batch["key"]):  # the rest of a pack, counted from 0 on all axes
                assert (positions[:, 0, start:stop] == counted).all()
                continue
            mine = alone[batch["key"][number]]["position_ids"][:, 0]
            assert torch.equal(positions[1:, 0, start : start + mine.shape[1]], mine)
            seen.append(batch["key"][number])
    assert sorted(seen) == sorted(alone)


def test_skipped_samples_keep_places_of_images(damaged, qwen, vocabulary):
    image_id = vocabulary.token_to_id("<|image_pad|>")
    for options in ({"batch_size": 4}, {"pack": 200}):
        both = {"image": IMAGE, "text": qwen(), "on_error": "skip"}
        loader = datapipe.make_loader(damaged, num_workers=2, meta="valid", **both, **options)
        for batch in loader:
            tokens = batch["input_ids"] == image_id
            rotated = batch["position_ids"][-3:]
            frames, rows, columns = (axis[tokens] for axis in rotated)
            grids = (batch["image_grid_thw"][:, 1:] // 2).tolist()
            at = 0
            for high, wide in grids:
                place = torch.arange(high * wide)
                mine = slice(at, at + high * wide)
                assert len({*frames[mine].tolist()}) == 1
                assert torch.equal(rows[mine] - frames[mine], place // wide)
                assert torch.equal(columns[mine] - frames[mine], place % wide)
                at += high * wide
            assert at == len(frames)
        assert loader.skipped == 2


def test_nothing_but_positions_depends_on_it(make, text):
    plain = replace(IMAGE, mrope=False)
    assert_same_batches(make(image=IMAGE), make(image=plain))  # without tokens, nothing at all
    for options in ({"batch_size": 4}, {"pack": 200}):
        both = {"text": text(image_tokens="native"), **options}
        for one, other in zip(make(image=IMAGE, **both), make(image=plain, **both), strict=True):
            positions = one.pop("position_ids")
            ordinary = other.pop("position_ids", None)
            assert ordinary is None or torch.equal(positions[0], ordinary)
            assert_same_batches([one], [other])


def test_images_whose_tokens_have_no_rows_are_refused(make, text):
    def half(widths, heights):
        return widths + heights

    with pytest.raises(PlanError, match=r"mrope=True.*give image_tokens='native', or mrope=False"):
        make(image=IMAGE, text=text(image_tokens=half))
    make(image=replace(IMAGE, mrope=False), text=text(image_tokens=half))
