"""What is wrong in a mixture is said with its line, or the keys that lead to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from datapipe import Mixture, PlanError
from datapipe.mixture import MixtureDataset, MixtureGroup
from datapipe.mixture.parse import DATASET_KEYS, MIXTURE_KEYS

OPTIONS = ", ".join(DATASET_KEYS)
WEIGHT = "give a weight (0, or from 1e-9 to 1e9) such as 0.7, '5%', '70%' or None"
TIMES = "give a number of times from 1e-9 to 1e9, such as 2, '2x', '0.5x' or None"
LIMIT = "give a number of samples from 1, such as 5000, '5k samples', '10%' or None"
SYNTAX = (
    "anchors, aliases and tags (&, * and !) are not read; write the value out, or give it to the "
    "whole group"
)
AMOUNT = (
    "give an amount such as '100k steps', '2M samples' or '1.5B tokens', or a number of samples"
)
MIXED = (
    "'a' has a weight and 'b' a repeat (1x where none is given); give all datasets of a group "
    "weights, or all repeats, or put those with repeats into a group with a weight"
)
IN_FILES = {
    "a: -1": f"1: a weight -1: {WEIGHT}",
    "a: true": f"1: a weight True: {WEIGHT}",
    "a: .nan": f"1: a weight nan: {WEIGHT}",
    "a: fast": f"1: a weight 'fast': {WEIGHT}",
    "a: [1, 2]": f"1: a weight [1, 2]: {WEIGHT}",
    "a: 0x": f"1: a repeat '0x': {TIMES}",
    "\na:\n  wieght: 1": (
        f"3: 'wieght' is not an option of a dataset, do you mean 'weight'?; it has {OPTIONS}"
    ),
    "a:\n  xyz: 1": f"2: 'xyz' is not an option of a dataset; it has {OPTIONS}",
    "a: {weight: x}": f"1: weight 'x': {WEIGHT}",
    "a: {repeat: 0}": f"1: repeat 0: {TIMES}",
    "a: {limit: 0}": f"1: limit 0: {LIMIT}",
    "a: {limit: 101%}": f"1: limit '101%': {LIMIT}",
    "a: {limit: 5 steps}": f"1: limit '5 steps': {LIMIT}",
    "a: {name: 5}": "1: name 5: give a name of one line",
    "a: {path: 5}": "1: path 5: give a folder, shards or a URL",
    "a: {where: 5}": "1: where 5: give a string or None",
    "a: {text: {}}": (
        "1: text without a tokenizer; add tokenizer: tokenizer.json here, or to the text: of the "
        "whole mixture"
    ),
    "text: {tokenizer: t}\ndatasets:\n  a:\n    text:\n      max_length: 0": (
        "5: max_length 0: give an integer from 1 or None"
    ),
    "text:\n  tokenizer: t\n  max_length: 0\ndatasets:\n  a:": (
        "3: max_length 0: give an integer from 1 or None"
    ),
    "a: {text: short}": (
        "1: text 'short': give a mapping with tokenizer, template, image_tokens, image_token, "
        "image_markup, video_markup, max_length, overlong, system, add_bos, token_types, pairs, "
        "prompts"
    ),
    "a:\n  image:\n    flip: 2": "3: flip 2: give a probability, a number from 0 to 1",
    "a: 1\nb: 2x": f"2: {MIXED}",
    "a: 1\nb:": f"2: {MIXED}",
    "b:\na: 1": f"2: {MIXED}",
    "a: {weight: 1, repeat: 2}": "1: 'a' has a weight and a repeat; give one of them",
    "a: 1\n\na: 2": "3: key 'a' is given twice, first in mixture.yaml:1; leave one out",
    "a: 1\na/: 2": (
        "2: the name 'a' is given twice, first in mixture.yaml:1; give one of them another name"
    ),
    "g:\n  datasets:\n    a:\na:": (
        "4: the name 'a' is given twice, first in mixture.yaml:3; give one of them another name"
    ),
    "datasets: {}": "1: datasets {}: give a mapping or list of datasets, such as `captions/: 0.7`",
    "g:\n  datasets: []": (
        "2: datasets []: give a mapping or list of datasets, such as `captions/: 0.7`"
    ),
    "datasets: a": (
        "1: datasets 'a': give a mapping or list of datasets, such as `captions/: 0.7`"
    ),
    "datasets:\n  - weight: 1": "2: datasets[0] path None: give a folder, shards or a URL",
    "datasets:\n  - datasets: [a]": "2: datasets[0] name None: give a name of one line",
    "g: {path: x, datasets: [a]}": (
        "1: 'path' is not an option of a group; it has name, weight, repeat, datasets, text, image"
    ),
    "- a": "1: a mixture is a mapping; write datasets, such as `captions/: 0.7`",
    "epoch: longest\na: 1": (
        "1: 'epoch' is an option, but datasets: is missing; put the datasets under "
        "datasets:, or write 'epoch/' if it is a folder"
    ),
    "datasets: [a]\nweigths: tokens": (
        "2: 'weigths' is not an option of a mixture, do you mean 'weights'?; it has "
        + ", ".join(MIXTURE_KEYS)
    ),
    "datasets: [a]\nweights: bytes": "2: weights 'bytes': give 'samples' or 'tokens'",
    "datasets: [a]\nepoch: 5 steps": (
        "2: epoch '5 steps': give 'longest', 'shortest', or an amount such as '2M samples' or "
        "'4B tokens'"
    ),
    "datasets: [a]\nvalidation:\n  datasets: [b]\n  schedule: []": (
        "4: 'schedule' is not an option of a mixture; it has datasets, weights, epoch, text, image"
    ),
    "datasets: {a: 1}\nschedule: {}": (
        "2: schedule {}: give a list of changes with from, weights, over"
    ),
    "datasets: {a: 1}\nschedule:\n- from: soon\n  weights: {a: 2}": f"3: from 'soon': {AMOUNT}",
    "datasets: {a: 1}\nschedule:\n- from: 5": (
        "3: schedule[0] weights None: give new weights with names of datasets or groups"
    ),
    "datasets: {a: 1}\nschedule:\n- weights:\n    a: 2x": (
        "4: a '2x': give a weight (0, or from 1e-9 to 1e9) such as 0.7, '5%' or '70%'"
    ),
    "datasets: {cat: 1}\nschedule:\n- weights:\n    cats: 2": (
        "4: the mixture has no 'cats', do you mean 'cat'?; it has 'cat'"
    ),
    "datasets: {a: 1x}\nschedule:\n- weights:\n    a: 2": (
        "4: 'a' has a repeat, and only weights can change; give weights to it and the "
        "datasets of its group, 0 to one that enters later"
    ),
    "datasets: {a: 1}\nschedule:\n- weights: {a: 2}\n- weights: {a: 1}": (
        "4: only the first change may be without from:; add the amount it begins at"
    ),
    "datasets: {a: 1}\nschedule:\n- {from: 1k steps, weights: {a: 2}}\n- weights: {a: 1}": (
        "4: only the first change may be without from:; add the amount it begins at"
    ),
    "datasets: {a: 1}\nschedule:\n- {from: 2k steps, weights: {a: 2}}\n- from: 2000 steps\n"
    "  weights: {a: 1}": (
        "4: 2000 steps is not after 2000 steps of the change before; give changes in the order of "
        "the run"
    ),
    "a: &x 1\nb: *x": f"1: {SYNTAX}",
    "a: !!python/object/apply:os.system [ls]": f"1: {SYNTAX}",
    "a: !!int 1": f"1: {SYNTAX}",
    "? [a]\n: 1": "1: a key is a list or mapping; write a name",
    "": "1: the file is empty; give datasets, such as `captions/: 0.7`",
}


@pytest.mark.parametrize(("content", "message"), IN_FILES.items(), ids=range(len(IN_FILES)))
def test_messages_about_files_name_the_line(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mixture.yaml").write_text(content)
    with pytest.raises(PlanError) as refused:
        Mixture.load("mixture.yaml")
    assert str(refused.value) == f"mixture.yaml:{message}"


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"a": 1}
    for level in range(levels):
        inner = {f"g{level}": {"weight": 1, "datasets": inner}}
    return inner


IN_DICTS: list[tuple[Any, str]] = [
    ({"chats": {"weight": -1}}, f'mixture["chats"]["weight"] -1: {WEIGHT}'),
    (
        {"chats": {"weight": 1, "datasets": [{"path": "a", "limit": "0%"}]}},
        f'mixture["chats"]["datasets"][0]["limit"] \'0%\': {LIMIT}',
    ),
    ({"a": 1, "b": {"repeat": 1}}, f'mixture["b"]: {MIXED}'),
    (
        {"a": {"where": "width >"}},
        'mixture["a"]["where"]: where=\'width >\', character 8: invalid syntax',
    ),
    (
        {"datasets": {"a": 1}, "schedule": [{"weights": {"a": 1, "a/": 1}}]},
        'mixture["schedule"][0]["weights"]["a/"]: \'a\' is given twice; leave one out',
    ),
    ({1: 2}, "mixture {1: 2}: give a dict with names as keys"),
    ({"a": 1, Path("a"): 2}, "mixture[\"a\"]: the name 'a' is given twice, first in mixture"),
    ({"": 1}, 'mixture[""]["path"] \'\': give a folder, shards or a URL'),
    ({"a": object}, f'mixture["a"]["weight"] <class \'object\'>: {WEIGHT}'),
    (
        5,
        'mixture 5: give a Mixture or a dict, such as {"captions/": 0.7, "chats/": 0.3}',
    ),
]


@pytest.mark.parametrize(("mixture", "message"), IN_DICTS, ids=range(len(IN_DICTS)))
def test_messages_about_dicts_name_the_keys(mixture, message):
    with pytest.raises(PlanError) as refused:
        Mixture.of(mixture)
    assert str(refused.value).startswith(message)


def test_groups_may_be_nested_but_not_without_end(tmp_path):
    assert len(Mixture.of(nested(20)).datasets) == 1
    loop: dict[str, Any] = {}
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
