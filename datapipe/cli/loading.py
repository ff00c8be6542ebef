"""The options of a loader, for commands that load as a training script does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from shlex import quote
from typing import Any

from datapipe.cli import values
from datapipe.cli.fields import Flag, flag_of, flags_of, own_flag
from datapipe.cli.mixture import mixture_in
from datapipe.cli.text import text_spec
from datapipe.errors import PlanError
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.specs import BatchSpec, DeviceSpec, PackSpec
from datapipe.mixture.given import text_of
from datapipe.mixture.spec import Mixture
from datapipe.plan.options import PlanOptions
from datapipe.text.spec import TextSpec

PLAN_FLAGS = (
    flag_of(BatchSpec, "batch_size", help="Samples per batch; with --pack, packs per batch."),
    own_flag(
        "model",
        "Folder of the model to train: images and texts are prepared for it. --image, --tokenizer "
        "and so on override that.",
    ),
    own_flag(
        "image",
        "Form of images: none, a size such as 336, options such as "
        "size=336,resize=pad,normalize=clip, or a preset with options behind it, such as "
        "qwen2-vl,max_pixels=401408.",
    ),
    *flags_of(TextSpec, "tokenizer", "template"),
    flag_of(
        TextSpec,
        "image_tokens",
        help="Tokens of an image: a number, per-tile or native. By default what follows from "
        "--image, whose patch= says it for a fixed size; 576 for 336.",
    ),
    *flags_of(TextSpec, "max_length", "overlong", "pairs", "prompts"),
    flag_of(PackSpec, "tokens", "pack"),
    flag_of(PackSpec, "window", "pack_window"),
    flag_of(PackSpec, "multiple_of", "pack_multiple_of"),
    *flags_of(PackSpec, "max_images", "max_samples", "max_patches", "static_shapes"),
    flag_of(BatchSpec, "multiple_of", "pad_to_multiple_of"),
    *flags_of(BatchSpec, "pad_to", "sample_images", "sample_patches"),
    *flags_of(PlanOptions, "max_tokens", "buckets"),
    own_flag("where", "Only samples for which this holds: 'width >= 336'."),
    flag_of(
        PlanOptions,
        "shuffle",
        kind=bool,
        default=True,
        help="A new order each epoch, or the order of the dataset.",
    ),
    flag_of(
        PlanOptions,
        "shards_mixed",
        default=None,
        help="Shuffle shards, and mix this many of them at once.",
    ),
    flag_of(PlanOptions, "seed", default=0),
    *flags_of(PlanOptions, "drop_last"),
)
"""Options that decide which samples come when."""

LOADER_FLAGS = (
    *PLAN_FLAGS,
    own_flag("dtype", "Type of pixel_values: uint8, float32 or bfloat16."),
    own_flag(
        "transform",
        "Your transform as module:function, or file.py:function.",
        parse=values.resolve_target,
    ),
    own_flag("meta", "Further facts in each batch, such as key,source.", parse=values.parse_names),
    *flags_of(DeviceSpec, "device", "channels_last", "pin_memory"),
    flag_of(LoaderOptions, "verify", default=True),
    *flags_of(LoaderOptions, "on_error"),
)
"""`PLAN_FLAGS` and options of loading; those of workers and decoder differ by command."""


@dataclass(frozen=True)
class Flags:
    """Options given on the command line; `keywords` makes arguments of `make_loader` of them."""

    declared: tuple[Flag, ...]
    values: Mapping[str, Any]

    def keywords(self, mixture: Mixture | None = None) -> dict[str, Any]:
        """Return keyword arguments of `make_loader`, without options that were not given.

        The datasets of `mixture` may have text options of their own.
        """
        given = self.given_to(None, PlanOptions, LoaderOptions)
        dtype, mixed = given.pop("dtype", None), given.get("shards_mixed")
        if given.get("image") is not None or dtype is not None:  # else arrays have their own
            given["image"] = values.parse_image(given.get("image"), dtype)
        if mixed is not None:
            if not given.get("shuffle", True):
                raise PlanError("--shards-mixed shuffles, and --no-shuffle does not; leave one out")
            given["shuffle"] = "shards"
        text = self.given_to(TextSpec)
        if (model := given.pop("model", None)) is None:
            given["text"] = text_spec(**text)
        else:
            from datapipe.models.families import specs_for  # imports torch

            image, known = specs_for(model)
            given["text"] = replace(known, **text)
            given.setdefault("image", image)
        pack, to = self.given_to(PackSpec), self.given_to(DeviceSpec)
        if batch := self.given_to(BatchSpec):
            given["batch_size"] = BatchSpec(**batch)
        if given["text"] is None and (mixture is None or text_of(mixture, None) is None):
            self._refuse_without_tokenizer("" if mixture is None else ", or text: to the mixture")
        if pack:
            if "tokens" not in pack:
                first = next(flag.option for flag in self._given() if flag.owner is PackSpec)
                raise PlanError(f"{first} works with packs only; give --pack too")
            given["pack"] = PackSpec(**pack)
        return given | ({"device": DeviceSpec(**to)} if to else {})

    def given(self) -> list[str]:
        """Return the given options as a shell takes them: `--batch-size 32`."""
        words = []
        for flag in self._given():
            value = self.values[flag.name]
            name = flag.option if value is not False else f"--no-{flag.option[2:]}"
            words.append(name if isinstance(value, bool) else f"{name} {quote(str(value))}")
        return words

    def _given(self) -> list[Flag]:
        return [flag for flag in self.declared if self.values[flag.name] != flag.default]

    def given_to(self, *owners: type[Any] | None) -> dict[str, Any]:
        """Return the given values of the fields of dataclasses; of all other options for None."""
        return {
            flag.field or flag.name: flag.value(self.values[flag.name])
            for flag in self._given()
            if flag.owner in owners
        }

    def _refuse_without_tokenizer(self, more: str) -> None:
        for name in ("pack", "max_tokens", "buckets"):
            if self.values[name] is not None:
                raise PlanError(
                    f"--{name.replace('_', '-')} needs the tokens of every sample; give "
                    f"--tokenizer and --template{more}"
                )
        if self.values["batch_size"] is None:
            raise PlanError(
                "give --batch-size, or --pack or --max-tokens with --tokenizer and --template"
            )


def maker_of(shards: str, flags: Flags, **fixed: Any) -> Callable[..., Any]:
    """Return a function that makes the loader; call it once, so that wrong options show at once."""
    from datapipe.loader.make_loader import make_loader

    options = flags.keywords(mixture_in(shards)) | fixed | {"epochs": None}

    def make(**given: Any) -> Any:
        return make_loader(shards, **(options | given))

    make(num_workers=0, prefetch_factor=None).close()
    return make


def with_flags(*declared: Flag) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options to a command; it gets them together, as its argument `flags`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        others = [parameter for name, parameter in own.parameters.items() if name != "flags"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [parameter.replace(kind=keyword) for parameter in others]
        parameters += [
            inspect.Parameter(flag.name, keyword, default=flag.default, annotation=flag.annotation)
            for flag in declared
        ]

        @wraps(command)
        def call(**given: Any) -> None:
            flags = Flags(declared, {flag.name: given.pop(flag.name) for flag in declared})
            command(flags=flags, **given)

        # Where typer looks, in one version or another.
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        del call.__wrapped__
        return call

    return decorate
