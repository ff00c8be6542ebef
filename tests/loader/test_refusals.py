"""Options that cannot be meant, with a message that names value and remedy, and short forms."""

import inspect

import numpy as np
import pytest
import torch

import datapipe
from datapipe import BatchSpec, DeviceSpec, PlanError, RemoteSpec, RunSpec, WorkerSpec
from datapipe.decode.dali.graph import installed
from datapipe.testing import assert_same_batches

from .stated import read, with_specs

REFUSALS = [
    *read("refusals"),
    # What YAML cannot state.
    ({"epochs": np.bool_(True)}, "epochs .*: give an integer or None"),
    ({"meta": np.array("key")}, "meta array"),
    ({"exclude": np.array(5.0)}, "exclude array"),
    *(
        ({"text": {"image_tokens": counts}, "image": None}, said)
        for counts, said in (
            (lambda widths, heights: widths / 2, "returned float64"),
            (lambda widths, heights: 7, r"shape \(\)"),
            (lambda widths, heights: widths[:1], r"shape \(1,\) for"),
            (lambda widths, heights: widths - 1, "returned 0 for an image of 1 x 1 pixels"),
        )
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_impossible_options_are_refused(make, text, options, message):
    if options.get("decoder") == "dali" and not installed():
        pytest.skip("DALI is not installed")
    with pytest.raises(PlanError, match=message):
        make(**with_specs(options, text=text))


def test_a_run_that_ends_before_an_epoch_without_a_step_is_not_refused(make, text):
    pack = datapipe.PackSpec(200, window=1)  # the second epoch has eight packs
    options = {"text": text(), "pack": pack, "batch_size": 9, "seed": 1, "drop_last": True}
    assert len(list(make(**options))) == 1
    assert len(list(make(**options, epochs=2, run=RunSpec(max_steps=1)))) == 1


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"device": "cpu"}, {"device": DeviceSpec(torch.device("cpu"))}),
        ({"device": None, "workers": "threads"}, {"device": DeviceSpec(), "workers": WorkerSpec()}),
        ({"batch_size": 5}, {"batch_size": BatchSpec(5)}),
        ({}, {"run": RunSpec(), "remote": RemoteSpec()}),
        ({"workers": "processes"}, {"workers": WorkerSpec("processes", persistent=False)}),
    ],
    ids=str,
)
def test_a_short_form_stands_for_the_spec(packed, short, long):
    one, other = (
        datapipe.make_loader(packed, **{"batch_size": 5, "num_workers": 1} | options)
        for options in (short, long)
    )
    assert_same_batches(one, other)


def test_make_loader_has_at_most_thirty_one_arguments():
    assert len(inspect.signature(datapipe.make_loader).parameters) <= 31
