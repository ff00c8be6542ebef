"""Options of a command become those of `make_loader`: type, default and help of a field."""

import inspect
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import datapipe
from datapipe import DeviceSpec, ImageSpec, PackSpec, TextSpec
from datapipe.cli.fields import field_value, flag_of, help_of
from datapipe.cli.loading import LOADER_FLAGS, Flags, with_flags
from datapipe.loader.specs import RunSpec
from datapipe.plan.options import PlanOptions
from tests.case_files import cases


def keywords(*arguments):
    """What a command with these options makes of them."""
    got: dict[str, Any] = {}

    @with_flags(*LOADER_FLAGS)
    def load(flags: Flags, shards: Annotated[Path, typer.Argument()] = Path("shards")):
        got.update(flags.keywords(), shards=shards, given=flags.given())

    app = typer.Typer()
    app.command()(load)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return got


def test_what_is_not_given_stays_as_make_loader_has_it():
    assert keywords("--batch-size", 4, "--image", "none")["image"] is None
    made = keywords("--batch-size", 4)
    defaults = inspect.signature(datapipe.make_loader).parameters
    assert made.pop("batch_size") == datapipe.BatchSpec(4)
    assert (made.pop("shards"), made.pop("given")) == (Path("shards"), ["--batch-size 4"])
    for name, value in made.items():
        assert value == defaults[name].default, name


def test_an_image_is_said_by_its_size_options_and_switches():
    spec = ImageSpec(size=(48, 64), flip=0.5, scaled_decode=True)
    made = keywords("--batch-size", 4, "--image", "48x64,flip=0.5,scaled_decode")
    assert made["image"] == spec


def test_every_option_reaches_make_loader_under_its_name(tokenizer):
    made = keywords(
        *("other", "--image", "qwen2-vl,max_pixels=3136", "--dtype", "bfloat16", "--pack", 512),
        *("--tokenizer", tokenizer, "--template", "chatml", "--max-length", 99),
        *("--overlong", "drop", "--pack-window", 8, "--pack-multiple-of", 2),
        *("--max-samples", 5, "--max-patches", 64, "--static-shapes", "--where", "width > 2"),
        *("--image-tokens", 7, "--max-tokens", 99, "--buckets", "8,16", "--shards-mixed", 4),
        *("--seed", 7, "--drop-last", "--meta", "key, source"),
        *("--device", "cpu", "--channels-last", "--pin-memory", "--no-verify"),
        *("--on-error", "skip", "--batch-size", 2, "--transform", "pathlib:Path.joinpath"),
    )
    spec = datapipe.ImageSpec.preset("qwen2-vl", max_pixels=3136, dtype=torch.bfloat16)
    text = {"tokenizer": str(tokenizer), "template": "chatml", "max_length": 99, "image_tokens": 7}
    assert made["shards"] == Path("other")
    assert made["image"] == spec
    assert made["text"] == datapipe.TextSpec(**text, overlong="drop")
    assert made["transform"] is Path.joinpath
    pack = {"window": 8, "multiple_of": 2, "max_samples": 5, "max_patches": 64}
    assert made["pack"] == datapipe.PackSpec(512, static_shapes=True, **pack)
    assert made["device"] == datapipe.DeviceSpec("cpu", channels_last=True, pin_memory=True)
    expected = {"where": "width > 2", "seed": 7, "max_tokens": 99, "buckets": (8, 16)}
    expected |= {"shuffle": "shards", "shards_mixed": 4, "drop_last": True}
    expected |= {"meta": ("key", "source"), "verify": False, "on_error": "skip"}
    expected |= {"batch_size": datapipe.BatchSpec(2)}
    assert {name: made[name] for name in expected} == expected
    names = set(inspect.signature(datapipe.make_loader).parameters)
    assert made.keys() - {"shards", "given"} <= names


def test_what_was_given_can_be_given_again():
    given = ["--batch-size 4", "--where 'width > 336'", "--drop-last", "--no-verify"]
    assert keywords(*(word for option in given for word in shlex.split(option)))["given"] == given


@pytest.mark.parametrize(("given", "value"), cases("cli/field_values"))
def test_a_text_means_what_the_field_takes(given, value):
    owner, field, text = given.split(" ", 2)
    owners = {spec.__name__: spec for spec in (ImageSpec, PlanOptions, TextSpec)}
    assert repr(field_value(owners[owner], field, text, "--option")) == value


def test_type_default_and_help_are_those_of_the_field():
    window = flag_of(PackSpec, "window", "pack_window")
    assert (window.option, window.kind, window.default) == ("--pack-window", int, 256)
    assert window.help == "Most samples that wait for a pack they fit into."
    assert flag_of(DeviceSpec, "channels_last").kind is bool
    assert flag_of(RunSpec, "max_steps").default is None
    assert help_of(TextSpec, "template").startswith("llava, chatml, caption, or a file")


def test_every_option_says_what_it_is_and_every_field_of_a_spec_has_one():
    for flag in LOADER_FLAGS:
        assert flag.help.endswith("."), flag.name
        assert len(flag.help) < 200, flag.name
        assert "`" not in flag.help, flag.name
    for spec in (PackSpec, DeviceSpec):
        known = {flag.field for flag in LOADER_FLAGS if flag.owner is spec}
        assert known == {field.name for field in fields(spec)}
