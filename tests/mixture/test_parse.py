"""Mixtures from dicts and files."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from datapipe import ImageSpec, Mixture, TextSpec
from datapipe.mixture import MixtureDataset, MixtureGroup
from datapipe.mixture.given import image_of
from datapipe.quantities import Amount


@pytest.fixture
def full(tmp_path):
    return Mixture.load(shutil.copy(Path(__file__).parent / "full.yaml", tmp_path))


def test_a_file_says_everything(full):
    captions, short, long = full.datasets
    group = full.children[1]
    assert isinstance(group, MixtureGroup)
    assert (full.weights, full.epoch) == ("tokens", Amount(4 * 10**9, "tokens"))
    assert (captions.weight, group.weight, short.repeat, long.repeat) == (0.7, 0.3, 2, 0.5)
    assert (short.limit, short.where, long.limit) == ("10%", "width > 64", None)
    assert [(change.start, change.over, change.weights) for change in full.schedule] == [
        (Amount(0, "samples"), Amount(10_000, "steps"), {"captions": 1}),
        (Amount(100_000, "steps"), None, {"captions": 0.01, "chats": 0.99}),
    ]
    assert full.validation.epoch == "shortest"
    assert [(d.name, d.repeat, d.limit) for d in full.validation.datasets] == [
        ("s3://bucket/captions", 1, None),
        ("more", 1, 5000),
    ]


def test_paths_in_a_file_are_relative_to_its_folder(full, tmp_path):
    captions, short, long = full.datasets
    assert (captions.name, captions.path) == ("captions", str(tmp_path / "captions") + "/")
    assert (short.name, short.path) == ("short", str(tmp_path / "chats/short"))
    assert (long.name, long.path) == ("~/long", str(Path("~/long").expanduser()) + "/")
    assert captions.text.tokenizer == str(tmp_path / "tok/tokenizer.json")
    assert full.validation.datasets[0].path == "s3://bucket/captions/"


def test_paths_in_a_dict_stay_and_names_lose_a_slash():
    mixture = Mixture.of({"captions/": 1, Path("b/c"): 1, "/": 1, "shards/{00..09}.tar": 1})
    assert [(dataset.name, dataset.path) for dataset in mixture.datasets] == [
        ("captions", "captions/"),
        ("b/c", "b/c"),
        ("/", "/"),
        ("shards/{00..09}.tar", "shards/{00..09}.tar"),
    ]


def test_specs_are_merged_field_by_field(full, tmp_path):
    captions, short, long = full.datasets
    text = TextSpec(
        tokenizer=str(tmp_path / "tok/tokenizer.json"), template="chatml", max_length=4096
    )
    assert captions.text == text
    assert (short.text.template, short.text.max_length) == ("llava", 4096)
    assert (long.text.template, long.text.max_length) == ("llava", 9)
    image = ImageSpec.preset("siglip", size=384, dtype=torch.bfloat16)
    assert captions.image == short.image == image
    assert long.image == ImageSpec.preset("imagenet")  # a preset begins anew
    assert full.validation.datasets[0].text == text


def test_specs_may_be_given_as_objects():
    text = TextSpec(tokenizer="tokenizer.json", max_length=8)
    image = ImageSpec(size=32)
    datasets = {
        "a": None,
        "b": {"image": image, "text": {"max_length": 9}},
        "c": {"text": TextSpec(tokenizer="other")},
    }
    a, b, c = Mixture.of({"text": text, "datasets": datasets}).datasets
    assert (a.text, a.image, b.image) == (text, None, image)
    assert b.text == TextSpec(tokenizer="tokenizer.json", max_length=9)
    assert c.text == TextSpec(tokenizer="other")


def test_short_and_long_forms_are_one():
    long = {"datasets": [{"path": "a/", "weight": 0.7}, {"path": "b/", "weight": "30%"}]}
    assert Mixture.of({"a/": 0.7, "b/": 0.3}) == Mixture.of(long)
    assert Mixture.of({"a/": None, "b/": "0.5x"}) == Mixture.of(
        {"datasets": {"a/": {"repeat": 1}, "b/": {"repeat": 0.5}}}
    )
    mixture = Mixture.of({"text/": 1})  # a folder with the name of an option
    assert Mixture.of(mixture) is mixture


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_read_by_the_same_parser(tmp_path, indent):
    content = {"datasets": {"a\tb/": {"weight": 1e-07}, "https://x/y": 1, "2024": 5e3}}
    (tmp_path / "mixture.json").write_text(json.dumps(content, indent=indent))
    mixture = Mixture.load(tmp_path / "mixture.json")
    assert [d.weight for d in mixture.datasets] == [1e-7, 1, 5000]
    assert [d.name for d in mixture.datasets] == ["a\tb", "https://x/y", "2024"]


def test_names_that_yaml_takes_for_something_else_stay_names(tmp_path):
    (tmp_path / "m.yaml").write_text("on: 1\n2024-01-01: 1\n007: 1\nnull: 1\n")
    mixture = Mixture.load(tmp_path / "m.yaml")
    assert [d.name for d in mixture.datasets] == ["on", "2024-01-01", "007", "null"]


def test_a_mixture_goes_to_json_and_back(full):
    inner = {"weight": 2, "datasets": {"a": 1e-6, "b": 1000}}
    nested = Mixture.of({"c": 0.1 + 0.2, "g": {"weight": 1, "datasets": {"h": inner, "d": 1e6}}})
    for mixture in (full, nested):
        written = json.dumps(mixture.to_dict(), sort_keys=True)
        assert Mixture.of(json.loads(written)) == mixture
        assert json.dumps(Mixture.of(json.loads(written)).to_dict(), sort_keys=True) == written


def test_a_text_spec_that_json_cannot_hold_is_left_out():
    def count(widths, heights):
        return widths

    image = ImageSpec(size=(8, 9), fill=(1, 2, 3), resize="pad", normalize=((0.5,) * 3, (1.0,) * 3))
    text = TextSpec(tokenizer=Path("t.json"), image_tokens=count)
    mixture = Mixture.of({"a": {"text": text, "image": image}})
    back = Mixture.of(json.loads(json.dumps(mixture.to_dict())))
    assert (back.datasets[0].text, back.datasets[0].image) == (None, image)


@pytest.mark.parametrize(
    ("limit", "samples", "taken"),
    [(None, 7, 7), (5, 7, 5), (9, 7, 7), ("10%", 1234, 123), ("0.001%", 7, 1), ("10%", 0, 0)],
)
def test_limits_are_counts_or_shares(limit, samples, taken):
    assert MixtureDataset(name="a", path="a", repeat=1, limit=limit).limited(samples) == taken


def test_images_are_those_of_the_datasets_if_all_have_their_own():
    large = ImageSpec(size=448)
    some = Mixture.of({"a/": {"image": large}, "b/": "1x"})
    all_of_them = Mixture.of({"a/": {"image": large}})
    assert image_of(some, ImageSpec(), given=False) == ImageSpec()
    assert image_of(all_of_them, ImageSpec(), given=False) == large
    assert image_of(all_of_them, None, given=True) is None
