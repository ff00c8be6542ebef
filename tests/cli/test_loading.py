"""Options of a command become those of `make_loader`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import datapipe
from datapipe.cli.loading import LOADER_FLAGS, Flags, with_flags
from datapipe.cli.values import parse_image, resolve_target


def keywords(*arguments: Any) -> dict[str, Any]:
    """What a command with these options makes of them."""
    got: dict[str, Any] = {}

    @with_flags(*LOADER_FLAGS)
    def load(flags: Flags, shards: Annotated[Path, typer.Argument()] = Path("shards")) -> None:
        got.update(flags.keywords(), shards=shards, given=flags.given())

    app = typer.Typer()
    app.command()(load)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return got


def test_what_is_not_given_stays_as_make_loader_has_it() -> None:
    made = keywords("--batch-size", 4)
    defaults = inspect.signature(datapipe.make_loader).parameters
    assert made.pop("batch_size") == datapipe.BatchSpec(4)
    assert (made.pop("shards"), made.pop("given")) == (Path("shards"), ["--batch-size 4"])
    for name, value in made.items():
        assert value == defaults[name].default, name


def test_every_option_reaches_make_loader_under_its_name(tokenizer: Path) -> None:
    made = keywords(
        *("other", "--image", "qwen2-vl,max_pixels=3136", "--dtype", "bfloat16", "--pack", 512),
        *("--tokenizer", tokenizer, "--template", "chatml", "--max-length", 99),
        *("--overlong", "drop", "--pack-window", 8, "--pack-multiple-of", 2),
        *("--max-samples", 5, "--max-patches", 64, "--static-shapes", "--where", "width > 2"),
        *("--shards-mixed", 4, "--seed", 7, "--drop-last", "--meta", "key, source"),
        *("--device", "cpu", "--channels-last", "--pin-memory", "--no-verify"),
        *("--on-error", "skip", "--batch-size", 2, "--transform", "os.path:join"),
    )
    spec = datapipe.ImageSpec.preset("qwen2-vl", max_pixels=3136, dtype=torch.bfloat16)
    text = datapipe.TextSpec(
        tokenizer=str(tokenizer),
        template="chatml",
        max_length=99,
        overlong="drop",
    )
    assert made["shards"] == Path("other")
    assert made["image"] == spec
    assert made["text"] == text
    assert made["transform"] is __import__("os").path.join
    pack = {"window": 8, "multiple_of": 2, "max_samples": 5, "max_patches": 64}
    assert made["pack"] == datapipe.PackSpec(512, static_shapes=True, **pack)
    assert made["device"] == datapipe.DeviceSpec("cpu", channels_last=True, pin_memory=True)
    expected = {"where": "width > 2", "seed": 7}
    expected |= {"shuffle": "shards", "shards_mixed": 4, "drop_last": True}
    expected |= {"meta": ("key", "source"), "verify": False, "on_error": "skip"}
    expected |= {"batch_size": datapipe.BatchSpec(2)}
    assert {name: made[name] for name in expected} == expected
    names = set(inspect.signature(datapipe.make_loader).parameters)
    assert made.keys() - {"shards", "given"} <= names


def test_what_was_given_can_be_given_again() -> None:
    arguments = ("--batch-size", 4, "--where", "width > 336", "--no-verify", "--drop-last")
    first = keywords(*arguments)
    assert first["given"] == ["--batch-size 4", "--where 'width > 336'", "--drop-last",
                              "--no-verify"]  # fmt: skip


def test_buckets_are_a_number_or_boundaries(tokenizer: Path) -> None:
    options = ("--tokenizer", tokenizer, "--template", "chatml", "--batch-size", 4)
    made = keywords(*options, "--max-tokens", 99, "--image-tokens", 7)
    assert (made["max_tokens"], made["text"].image_tokens) == (99, 7)
    assert keywords(*options, "--buckets", "8")["buckets"] == 8
    assert keywords(*options, "--buckets", "8,16")["buckets"] == (8, 16)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (None, {}),
        ("224", {"size": 224}),
        ("48x64", {"size": (48, 64)}),
        ("size=48x64, resize=pad, normalize=clip", {"size": (48, 64), "resize": "pad",
                                                    "normalize": "clip"}),
        ("224,flip=0.5,random_crop=0.2:1", {"size": 224, "flip": 0.5, "random_crop": (0.2, 1.0)}),
        ("scaled_decode", None),
        ("224,scaled_decode", {"size": 224, "scaled_decode": True}),
    ],
)  # fmt: skip
def test_images_are_said_by_size_or_option(asked: str | None, options: Any) -> None:
    if options is None:
        with pytest.raises(datapipe.PlanError, match="preset"):
            parse_image(asked)
    else:
        assert parse_image(asked) == datapipe.ImageSpec(**options)


def test_no_image_is_none() -> None:
    assert parse_image("none") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --batch-size"),
        (("--batch-size", 0), "--batch-size 0: give an integer from 1"),
        (("--pack", 4), "--pack needs the tokens"),
        (("--batch-size", 4, "--buckets", "x"), "--buckets 'x': give how many"),
        (
            ("--batch-size", 4, "--pack-window", 8),
            "--pack-window works with packs only; give --pack too",
        ),
        (("--batch-size", 4, "--pack-window", 0), "--pack-window 0: give an integer from 1"),
        (("--batch-size", 4, "--template", "chatml"), "--template needs --tokenizer"),
        (("--batch-size", 4, "--shards-mixed", 4, "--no-shuffle"), "leave one out"),
        (("--batch-size", 4, "--dtype", "nothing"), "--dtype 'nothing': give one of torch.uint8"),
        (("--batch-size", 4, "--image", "none", "--dtype", "uint8"), "leaves them out"),
        (("--batch-size", 4, "--image", "224,wide=2"), "'wide' is not an option of ImageSpec"),
        (("--batch-size", 4, "--image", "224,size=big"), "'224,size=big': size 'big': give a side"),
        (("--batch-size", 4, "--transform", "nothing"), "give module:function"),
        (("--batch-size", 4, "--transform", "no_such:thing"), "there is no module 'no_such'"),
        (("--batch-size", 4, "--transform", "os:nope"), "os has no 'nope'"),
        (("--batch-size", 4, "--transform", "os:sep"), "this is a str, not a function"),
    ],
)
def test_wrong_options_are_said_with_their_remedy(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(datapipe.PlanError, match=message):
        keywords(*arguments)


def test_a_function_is_found_in_a_file_and_where_it_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "train_here.py").write_text("class A:\n    @staticmethod\n    def b(): return 5\n")
    assert resolve_target(f"{tmp_path}/train_here.py:A.b", "--target")() == 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lacking.py").write_text("import not_installed_at_all\n")
    with pytest.raises(datapipe.PlanError, match="importing lacking fails: No module named"):
        resolve_target("lacking:f", "--target")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    with pytest.raises(datapipe.PlanError, match="importing failing raises ZeroDivisionError"):
        resolve_target("failing:f", "--target")
    with pytest.raises(datapipe.PlanError, match=r"no file nowhere\.py"):
        resolve_target("nowhere.py:f", "--target")
