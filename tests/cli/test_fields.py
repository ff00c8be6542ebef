"""Options of commands come from the fields of dataclasses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import datapipe
from datapipe import DeviceSpec, ImageSpec, PackSpec, TextSpec
from datapipe.cli.fields import field_value, flag_of, help_of
from datapipe.cli.loading import LOADER_FLAGS
from datapipe.loader.specs import RunSpec
from datapipe.plan.options import PlanOptions


@pytest.mark.parametrize(
    ("owner", "field", "text", "value"),
    [
        (ImageSpec, "size", "480x640", (480, 640)),
        (ImageSpec, "size", "336", 336),
        (ImageSpec, "random_crop", "0.2:1", (0.2, 1.0)),
        (ImageSpec, "fill", "1,2,3", (1, 2, 3)),
        (ImageSpec, "normalize", "none", None),
        (ImageSpec, "resize", "pad", "pad"),
        (ImageSpec, "thumbnail", True, True),
        (PlanOptions, "buckets", "128, 512", (128, 512)),
        (TextSpec, "tokenizer", "123", "123"),
        (TextSpec, "image_tokens", "576", 576),
        (TextSpec, "image_tokens", "native", "native"),
    ],
)
def test_a_text_means_what_the_field_takes(owner: Any, field: str, text: Any, value: Any) -> None:
    found = field_value(owner, field, text, "--option")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("field", "text"), [("size", "big"), ("flip", "2"), ("size", "1x2x3")])
def test_what_a_field_does_not_take_is_refused_by_its_option(field: str, text: str) -> None:
    with pytest.raises(datapipe.PlanError, match=f"^--image '{text}': give "):
        field_value(ImageSpec, field, text, "--image")


def test_type_default_and_help_are_those_of_the_field() -> None:
    window = flag_of(PackSpec, "window", "pack_window")
    assert (window.option, window.kind, window.default) == ("--pack-window", int, 256)
    assert window.help == "Most samples that wait for a pack they fit into."
    assert flag_of(DeviceSpec, "channels_last").kind is bool
    assert flag_of(RunSpec, "max_steps").default is None
    assert help_of(TextSpec, "template").startswith("llava, chatml, caption, or a file")


def test_every_option_says_in_a_sentence_what_it_is() -> None:
    for flag in LOADER_FLAGS:
        assert flag.help.endswith("."), flag.name
        assert len(flag.help) < 200, flag.name
        assert "`" not in flag.help, flag.name


@pytest.mark.parametrize("spec", [PackSpec, DeviceSpec])
def test_every_field_of_a_spec_has_an_option(spec: Any) -> None:
    known = {flag.field for flag in LOADER_FLAGS if flag.owner is spec}
    assert known == {field.name for field in fields(spec)}
