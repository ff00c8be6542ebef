"""What is wrong in a mixture is said with its line, or the keys that lead to it."""

import json
from pathlib import Path

import pytest
import yaml

from datapipe import Mixture, PlanError
from datapipe.mixture import MixtureDataset, MixtureGroup

IN_DICTS = yaml.safe_load((Path(__file__).parent / "refused_dicts.yaml").read_text("utf-8"))
_, *IN_FILES = (Path(__file__).parent / "refused_files.txt").read_text("utf-8").split("\n=====\n")


@pytest.mark.parametrize("case", IN_FILES, ids=range(len(IN_FILES)))
def test_messages_about_files_name_the_line(case, tmp_path, monkeypatch):
    content, message = case.rsplit("\n> ", 1)
    monkeypatch.chdir(tmp_path)
    Path("mixture.yaml").write_text(content)
    with pytest.raises(PlanError) as refused:
        Mixture.load("mixture.yaml")
    assert str(refused.value) == message.rstrip("\n")


def nested(levels):
    inner = {"a": 1}
    for level in range(levels):
        inner = {f"g{level}": {"weight": 1, "datasets": inner}}
    return inner


@pytest.mark.parametrize("case", IN_DICTS, ids=range(len(IN_DICTS)))
def test_messages_about_dicts_name_the_keys(case):
    with pytest.raises(PlanError) as refused:
        Mixture.of(case["given"])
    assert str(refused.value).startswith(case["said"])


def test_values_that_no_file_can_hold_are_refused_too():
    with pytest.raises(
        PlanError, match=r"mixture\[\"a\"\]: the name 'a' is given twice, first in mixture"
    ):
        Mixture.of({"a": 1, Path("a"): 2})
    with pytest.raises(
        PlanError, match=r"mixture\[\"a\"\]\[\"weight\"\] <class 'object'>: give a weight"
    ):
        Mixture.of({"a": object})


def test_groups_may_be_nested_but_not_without_end(tmp_path):
    assert len(Mixture.of(nested(20)).datasets) == 1
    loop = {}
    loop["a"] = {"datasets": loop}
    path = tmp_path / "mixture.yaml"
    for content in (json.dumps(nested(40)), "[" * 5000 + "]" * 5000):
        path.write_text(content)
        with pytest.raises(PlanError, match=r"levels|nesting depth"):  # of ours, or of PyYAML
            Mixture.load(path)
    for deep in (nested(40), loop):
        with pytest.raises(PlanError, match="more than 50 levels"):
            Mixture.of(deep)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\n  b: 2", r"mixture.yaml:2: not YAML: "),
        (b"a: [1", r"mixture.yaml:\d: not YAML: "),
        (b"a: 1\n---\nb: 2", r"mixture.yaml:\d: not YAML: "),
        (b"a: \xff", r"mixture.yaml: not UTF-8 "),
        (b"a: \x00", r"mixture.yaml:\d: not YAML: "),
    ],
)
def test_files_that_are_no_yaml_are_refused(content, message, tmp_path):
    (tmp_path / "mixture.yaml").write_bytes(content)
    with pytest.raises(PlanError, match=message):
        Mixture.load(tmp_path / "mixture.yaml")


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"path no/mixture\.yaml: No such file"):
        Mixture.load("no/mixture.yaml")
    with pytest.raises(PlanError, match="Is a directory"):
        Mixture.load(tmp_path)


def test_parts_made_by_hand_are_checked_too():
    a = MixtureDataset(name="a", path="a", weight=1)
    with pytest.raises(PlanError, match="name 'a' is given twice; give"):
        Mixture(children=(a, a))
    with pytest.raises(PlanError, match="'a' has a weight and 'b' a repeat"):
        Mixture(children=(a, MixtureDataset(name="b", path="b", repeat=1)))
    with pytest.raises(PlanError, match="no weight and no repeat"):
        MixtureDataset(name="a", path="a")
    with pytest.raises(PlanError, match="at least one dataset"):
        MixtureGroup(name="a", children=(), weight=1)
