"""Options that belong together: each checks itself, and has a short form."""

import inspect

import pytest
import torch

import datapipe
from datapipe import (
    BatchSpec,
    CacheSpec,
    DeviceSpec,
    PackSpec,
    PlanError,
    RemoteSpec,
    RunSpec,
    WorkerSpec,
)
from datapipe.testing import assert_same_batches


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            PackSpec,
            {"tokens": 99, "multiple_of": 8},
            "99 tokens is not a multiple of multiple_of 8",
        ),
        (PackSpec, {"tokens": 99, "max_images": 2, "max_patches": 9}, "max_images=2 and max_p"),
        (BatchSpec, {"pad_to": 64, "multiple_of": 8}, "pad_to=64 and multiple_of=8 both set"),
        (BatchSpec, {"sample_images": 2, "sample_patches": 9}, "sample_images=2 and sample_p"),
        (RunSpec, {"max_skipped": -1}, "max_skipped -1: give an integer from 0"),
        (DeviceSpec, {"channels_last": True}, "channels_last .* give device="),
        (WorkerSpec, {"kind": "fork"}, "workers kind 'fork': give 'threads', 'processes' or 'ray'"),
        (WorkerSpec, {"stall_warning": 0}, "stall_warning 0: give seconds"),
        (RemoteSpec, {"read_ahead": "many"}, "read_ahead 'many': give a size"),
        (CacheSpec, {"plan": __file__}, "this is not a folder"),
        (CacheSpec, {}, "a cache needs room"),
    ],
)
def test_impossible_options_are_refused(kind, options, message):
    with pytest.raises(PlanError, match=message):
        kind(**options)


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


def test_make_loader_has_at_most_thirty_arguments():
    assert len(inspect.signature(datapipe.make_loader).parameters) <= 31
