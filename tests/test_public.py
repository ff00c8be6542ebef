"""The public surface."""

import inspect
import pickle

import pytest

import datapipe
import datapipe.errors
import datapipe.pack.pack_dataset  # a room of the same name must not hide a function

from .programs import python


def test_public_names_are_sorted_and_say_what_they_are():
    assert sorted(datapipe.__all__) == datapipe.__all__
    for name in datapipe.__all__:
        assert callable(getattr(datapipe, name)), name
        assert inspect.getdoc(getattr(datapipe, name)), name


def test_names_are_listed_before_they_are_imported_and_torch_is_not():
    program = (
        "import sys, datapipe, datapipe.cli; "
        "assert set(dir(datapipe)) >= {*datapipe.__all__, 'plan', 'testing', '__version__'}; "
        "assert 'datapipe.plan' not in sys.modules; "
        "datapipe.plan.pack_lengths; assert 'torch' not in sys.modules; "
        "datapipe.testing.assert_resumes_exactly; "
        "exec('from datapipe import *', names := {}); "
        "assert set(names) >= set(datapipe.__all__)"
    )
    python(program, check=True, timeout=300)


def test_planning_and_counting_wait_for_neither_torch_nor_transformers():
    program = (
        "import sys, numpy, datapipe, datapipe.plan.lengths, datapipe.text.truncate; "
        "import datapipe.loader.schedule.token_counts; from datapipe.mixture import resolve; "
        "resolve(datapipe.Mixture.of({'a': 1, 'b': 2}), numpy.array([3, 4])); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    python(program, check=True, timeout=300)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = datapipe.nonsense


def test_every_error_is_a_value_error_and_survives_a_process_border():
    kinds = [
        kind
        for _, kind in inspect.getmembers(datapipe.errors, inspect.isclass)
        if issubclass(kind, datapipe.DatapipeError)
    ]
    assert len(kinds) >= 10
    for kind in kinds:
        error = pickle.loads(pickle.dumps(kind("a reason")))
        assert isinstance(error, ValueError)
        assert (type(error), str(error)) == (kind, "a reason")


def test_a_sample_error_says_where():
    error = datapipe.DecodeError("cut off", key="7", member="7.jpg", shard="shard-000000.tar")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "sample 7 member 7.jpg of shard-000000.tar: cut off"
    assert (copy.key, copy.member, copy.shard) == ("7", "7.jpg", "shard-000000.tar")
