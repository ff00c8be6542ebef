"""`num_workers="auto"`: what was tuned is found again, by machine, dataset and work."""

import json
import logging
from functools import partial

import pytest

import datapipe
from datapipe.loader import tuned_settings
from datapipe.loader.distributed import default_workers
from datapipe.loader.tuned_settings import Tuned, keep, recall
from tests.forgetting import forget

FOUND = Tuned(num_workers=3, prefetch_factor=5, rate=12.5)


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget(tuned_settings)


def key_of(loader):
    return loader.components().find_tuning_key()


def settings_of(loader):
    return loader.options.num_workers, loader.options.prefetch_factor


def brighter(sample, generator):
    return sample


def test_what_was_kept_is_taken(make, caplog):
    caplog.set_level(logging.INFO)
    auto = {"num_workers": "auto", "prefetch_factor": "auto"}
    keep(key_of(make()), FOUND)
    for _ in range(2):
        assert settings_of(make(**auto)) == (3, 5)
    assert caplog.text.count("as tuned on this machine: 3 workers, prefetch 5") == 1
    assert settings_of(make(num_workers="auto", prefetch_factor=7)) == (3, 7)
    assert make(num_workers=1, prefetch_factor="auto").options.num_workers == 1
    keep(key_of(make()), Tuned(num_workers=0, prefetch_factor=None, rate=1.0))
    forget(tuned_settings)
    assert settings_of(make(**auto)) == (0, 2)  # without workers the prefetch is the default
    assert len(list(make(**auto))) == 10


def test_where_nothing_was_tuned_the_default_is_taken_and_the_log_says_how(make, caplog):
    for given in ("auto", "auto", None):
        loader = make(num_workers=given, prefetch_factor=given)
        assert settings_of(loader) == (default_workers(), 2)
    assert caplog.text.count("datapipe tune-workers") == 1


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 5},
        {"image": datapipe.ImageSpec(size=33)},
        {"image": None},
        {"workers": "processes"},
        {"transform": brighter},
        {"where": "width > 2"},
        {"verify": False},
        {"device": "cpu"},
        {"meta": "source"},
        {"shuffle": False},
    ],
)
def test_other_work_has_another_key(make, other):
    assert key_of(make(**other)) != key_of(make())


def test_what_is_no_work_does_not_matter_and_another_dataset_does(make):
    one = make(transform=partial(brighter), seed=3, num_workers=1, prefetch_factor=9, epochs=4)
    other = make(transform=partial(brighter), decoder="cpu", on_error="skip")
    assert key_of(one) == key_of(other)
    assert tuned_settings.tuning_key("one", {}) != tuned_settings.tuning_key("other", {})


def document(**changes):
    """A file with what was found, and changes of it."""
    found = {"num_workers": 1, "prefetch_factor": 2, "rate": 1.0} | changes
    return json.dumps({"version": tuned_settings.VERSION, "key": "KEY", "tuned": found})


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", "\x00\xff"),
        '{"version": 99, "key": "KEY", "tuned": {}}',
        document().replace("KEY", "other"),
        '{"version": 1, "key": "KEY", "tuned": {"num_workers": 1}}',
        document(num_workers=-1),
        document(num_workers=True),
        document(prefetch_factor=0.5),
        document(more=1),
    ],
)
def test_a_damaged_or_foreign_file_is_left_out_and_said(content, caplog):
    path = keep("KEY", FOUND)
    path.write_text(content, encoding="latin-1")
    assert recall("KEY") is None
    assert "tune again to replace it" in caplog.text
    keep("KEY", FOUND)
    assert recall("KEY") == FOUND


def test_keeping_replaces_and_leaves_nothing_else_behind():
    other = Tuned(num_workers=1, prefetch_factor=2, rate=3.0, step_time=0.1)
    keep("key", FOUND)
    path = keep("key", other)
    assert recall("key") == other
    assert [file.name for file in path.parent.iterdir()] == ["key.json"]
    assert json.loads(path.read_text())["version"] == tuned_settings.VERSION
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        keep("key", FOUND)
    assert list(path.parent.iterdir()) == [path]
