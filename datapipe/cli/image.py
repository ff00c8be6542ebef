"""`--image` of commands that load images: a preset, a size, options one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datapipe.errors import PlanError

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec

_WORDS = ("resize", "interpolation", "normalize")
_SHARES = ("flip",)
_FLAGS = ("scaled_decode", "mrope")


def parse_image(asked: str | None, dtype: str | None = None) -> ImageSpec | None:
    """The `ImageSpec` that `--image` and `--dtype` say; None where images are left out.

    Args:
        asked: "none"; "336"; "size=336,resize=pad,normalize=clip"; "qwen2-vl,max_pixels=401408".
            None is the default of `make_loader`.
        dtype: "uint8", "float32" or "bfloat16"; None as the other options say.

    Raises:
        PlanError: this is no such text, or the options contradict each other.
    """
    from datapipe.decode.spec import ImageSpec

    if asked == "none":
        if dtype is not None:
            raise PlanError(f"--dtype {dtype} is of images, and --image none leaves them out")
        return None
    parts = [part.strip() for part in (asked or "").split(",")]
    options: dict[str, Any] = {}
    preset = None
    if parts[0] and "=" not in parts[0]:
        first = parts.pop(0)
        if _is_size(first):
            options["size"] = _size(first)
        else:
            preset = first
    for part in parts:
        if part:
            options |= _option(part, f"--image {asked!r}")
    if dtype is not None:
        options["dtype"] = _dtype(dtype)
    return ImageSpec(**options) if preset is None else ImageSpec.preset(preset, **options)


def _option(part: str, asked: str) -> dict[str, Any]:
    from datapipe.decode.spec import ImageSpec

    name, equals, value = (text.strip() for text in part.partition("="))
    if name not in ImageSpec.__dataclass_fields__ or name == "dtype":
        raise PlanError(f"{asked}: {name!r} is no option of ImageSpec that can be given here")
    if name in _FLAGS and not equals:
        return {name: True}
    try:
        if name in _WORDS and value:
            return {name: None if value == "none" else value}
        if name in _SHARES:
            return {name: float(value)}
        if name == "random_crop":
            least, most = (float(share) for share in value.split(":"))
            return {name: (least, most)}
        if name == "size":
            return {name: _size(value)}
        return {name: int(value)}
    except ValueError:
        raise PlanError(
            f"{asked}: {part!r}: give options as size=336 or size=480x640, resize=pad, "
            "normalize=clip, flip=0.5, random_crop=0.2:1, max_pixels=401408"
        ) from None


def _is_size(text: str) -> bool:
    return all(side.isdecimal() for side in text.split("x"))


def _size(text: str) -> int | tuple[int, int]:
    """A side, or height x width."""
    if "x" not in text:
        return int(text)
    height, width = (int(side) for side in text.split("x"))
    return height, width


def _dtype(name: str) -> Any:
    import torch

    known = {"uint8": torch.uint8, "float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in known:
        raise PlanError(f"--dtype {name!r} is not one of {', '.join(known)}")
    return known[name]
