"""Batches gathered on the device are those of the loader, bit for bit."""

from itertools import islice

import pytest
import torch

from datapipe.testing import assert_same_batches
from examples.vlm.data.resident import Resident

from .test_vlm_model import FORMS, load

CPU = torch.device("cpu")
ALL = {
    "batch_size": 8,
    "shuffle": False,
    "meta": ("key", "dataset", "sample", "valid", "images_per_sample"),
}
META = ("key", "dataset", "valid", "num_items_in_batch")
SHAPES = [
    {"batch_size": 4},
    {"batch_size": 6, "buckets": 2},
    {"pack": 300},
    {"pack": 300, "batch_size": 2},
    {"batch_size": 3, "rank": 1, "world_size": 2},
]


def resident(shards, form, **options):
    loader = load(shards, FORMS[form], epochs=None, **options)
    every = load(shards, FORMS[form], **ALL)
    return Resident(loader, every, CPU, packed="pack" in options, limit=10**9)


def dtypes_of(batch):
    return {name: getattr(value, "dtype", None) for name, value in batch.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_they_are_those_of_the_loader_over_epochs(shards, form, options):
    wanted = list(load(shards, FORMS[form], epochs=3, meta=META, **options))
    found = list(islice(resident(shards, form, **options), len(wanted)))
    assert_same_batches(found, wanted)
    assert list(map(dtypes_of, found)) == list(map(dtypes_of, wanted))
    assert len(found) > 3


def test_states_of_other_orders_are_refused(shards):
    one = resident(shards, "fixed", pack=300)
    with pytest.raises(ValueError, match="of a run without --resident"):
        one.load_state_dict(load(shards, FORMS["fixed"], pack=300).state_dict())
    with pytest.raises(ValueError, match="of other data, or of other --pack"):
        one.load_state_dict(resident(shards, "fixed", pack=350).state_dict())
