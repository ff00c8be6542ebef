"""Files of a checkpoint that say what its processor does with images and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from datapipe.decode.normalize import Triple
from datapipe.decode.presets import NORMALIZATIONS
from datapipe.decode.resize import Filter
from datapipe.errors import PlanError
from datapipe.text.spec import TextSpec
from datapipe.text.vocabulary import default_template, read_json

_PROCESSOR = "processor_config.json"
_IMAGES = "preprocessor_config.json"
_TOKENIZER = "tokenizer.json"

# Of Pillow's `Resampling`, which the files name by number.
_FILTERS: dict[int, Filter] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
_FILTER_NAMES = {0: "nearest", 4: "box", 5: "Hamming"}


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Content of the files of a checkpoint that say what its processor does."""

    name: str  # in messages: its folder, or the class of a processor
    model_type: str | None  # of its config; None if only a processor is known
    processor_class: str | None  # its name in transformers; None if no file says so
    config: Mapping[str, Any]  # `config.json`, empty if only a processor is known
    processor: Mapping[str, Any]  # options such as `patch_size` and `image_seq_length`
    images: Mapping[str, Any]  # options of the image processor, as far as they are written down
    videos: Mapping[str, Any]  # likewise of the video processor, empty if there is none
    tokenizer: Any  # what `TextSpec(tokenizer=...)` takes
    template: str | None = None  # chat template that does not come with the tokenizer

    @property
    def vision(self) -> Mapping[str, Any]:
        """Options of the vision tower in `config.json`; empty if there are none."""
        return self.config.get("vision_config") or {}

    @property
    def image_token(self) -> str | None:
        """Token that is repeated for an image; None leaves it to the tokenizer's own names."""
        token = self.processor.get("image_token")
        if isinstance(token, Mapping):
            token = token.get("content")
        return token if isinstance(token, str) else None

    def text(self, **options: Any) -> TextSpec:
        """Return the options of texts: those given, with tokenizer and template."""
        return TextSpec(tokenizer=self.tokenizer, template=self.template, add_bos=True, **options)

    def refuse_crops(self) -> None:
        """Raise `PlanError` if the image processor cuts out the centre of images."""
        if self.images.get("do_center_crop"):
            raise self.refuse("its images are cropped (do_center_crop=true)")

    def refuse(self, what: str) -> PlanError:
        """Return the error about an option of this checkpoint that cannot be followed."""
        return PlanError(
            f"{self.name}: {what}; give image=ImageSpec(...) and text=TextSpec(...) that say what "
            "the model needs, and leave model= out"
        )


def open_checkpoint(model: Any) -> ModelFiles:
    """Read a folder as `save_pretrained` writes it, or take a processor; `PlanError` for others."""
    if isinstance(model, str | PathLike):
        return _from_folder(Path(model))
    if hasattr(model, "image_processor") and hasattr(model, "tokenizer"):
        return _from_processor(model)
    raise PlanError(
        f"model of type {type(model).__name__} is neither the folder of a checkpoint nor a "
        "processor of transformers with tokenizer and image processor; give one of them"
    )


def _from_folder(folder: Path) -> ModelFiles:
    if not folder.is_dir():
        remedy = (
            "give its folder"
            if folder.exists()
            else "names of the Hugging Face Hub are not looked up: download the files, as with `hf "
            "download`, and give their folder"
        )
        raise PlanError(f"model {str(folder)!r} is not a folder; {remedy}")
    config = read_json(folder / "config.json") or {}
    processor = read_json(folder / _PROCESSOR) or {}
    # Newer versions of transformers write the image processor into the processor's file.
    images = processor.get("image_processor") or read_json(folder / _IMAGES)
    missing = [] if (folder / _TOKENIZER).is_file() else [_TOKENIZER]
    if not isinstance(images, dict):
        missing.insert(0, f"{_IMAGES} or {_PROCESSOR} with an image processor")
    if missing:
        raise PlanError(
            f"{folder} has no {' and no '.join(missing)}; give the folder of a vision-language "
            "model as save_pretrained of its model and its processor writes it"
        )
    assert isinstance(images, dict)
    return ModelFiles(
        name=str(folder),
        model_type=config.get("model_type"),
        processor_class=processor.get("processor_class") or images.get("processor_class") or None,
        config=config,
        processor=processor,
        images=images,
        # As transformers looks for them.
        videos=processor.get("video_processor")
        or read_json(folder / "video_preprocessor_config.json")
        or read_json(folder / _IMAGES)
        or {},
        tokenizer=folder,
        template=default_template(processor.get("chat_template")),
    )


def _from_processor(processor: Any) -> ModelFiles:
    videos = getattr(processor, "video_processor", None)
    return ModelFiles(
        name=type(processor).__name__,
        model_type=None,
        processor_class=type(processor).__name__,
        config={},
        processor=vars(processor),
        images=processor.image_processor.to_dict(),
        videos=getattr(videos, "to_dict", dict)(),
        tokenizer=processor.tokenizer,
        template=getattr(processor, "chat_template", None),
    )


def pixel_options(
    checkpoint: ModelFiles, normalize: str | tuple[Triple, Triple], *, resample: int = 3
) -> dict[str, Any]:
    """Return `interpolation`, `normalize` and, if need be, `dtype`; `PlanError` if there are none.

    The processor takes `normalize`, mean and std or their name, and `resample` where the files say
    nothing.
    """
    images = checkpoint.images
    number = images.get("resample", resample)
    if number not in _FILTERS:
        told = _FILTER_NAMES.get(number, number)
        raise checkpoint.refuse(f"its images are resized with the filter {told}, not with one of "
                                f"{', '.join(_FILTERS.values())}")  # fmt: skip
    for name in ("do_resize", "do_rescale"):
        if images.get(name) is False:
            raise checkpoint.refuse(f"its image processor has {name}=false")
    factor = images.get("rescale_factor", 1 / 255)
    if abs(factor * 255 - 1) > 1e-6:
        raise checkpoint.refuse(f"its pixels are multiplied by {factor}, not by 1/255")
    if images.get("do_normalize") is False:
        # Values are from 0 to 1 all the same.
        return {"interpolation": _FILTERS[number], "normalize": None, "dtype": torch.float32}
    mean, std = NORMALIZATIONS[normalize] if isinstance(normalize, str) else normalize
    given = tuple(images.get("image_mean") or mean), tuple(images.get("image_std") or std)
    known = [name for name, values in NORMALIZATIONS.items() if values == given]
    return {"interpolation": _FILTERS[number], "normalize": known[0] if known else given}


def side_of(
    checkpoint: ModelFiles, name: str, default: int, *, both: bool = False
) -> tuple[int, int]:
    """Return (height, width) of a size in the image processor's options, or `PlanError`.

    The option is an object with `height` and `width`. Unless `both` are needed, it may be a number
    or have `shortest_edge` alone. `default` is that of both sides.
    """
    given = checkpoint.images.get(name)
    if given is None:
        return default, default
    sides = given if isinstance(given, Mapping) else {"shortest_edge": given}
    sides = {side: value for side, value in sides.items() if value is not None}
    if sides.keys() == {"height", "width"}:
        return int(sides["height"]), int(sides["width"])
    if both or sides.keys() != {"shortest_edge"} or not isinstance(sides["shortest_edge"], int):
        raise checkpoint.refuse(f"{name} of its image processor is {given!r}")
    return sides["shortest_edge"], sides["shortest_edge"]
