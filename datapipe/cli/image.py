"""What the subcommands that look at images have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from datapipe.errors import PlanError

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec

Image = Annotated[
    str | None,
    typer.Option(
        help="What becomes of images: a preset, options behind it, such as qwen2-vl or "
        "qwen2-vl,max_pixels=401408."
    ),
]


def image_spec(asked: str | None) -> ImageSpec | None:
    """The image options of a command, a preset with whole numbers that differ from it.

    Raises:
        PlanError: there is no such preset or option.
    """
    if asked is None:
        return None
    from datapipe.decode.spec import ImageSpec

    name, *changes = (part.strip() for part in asked.split(","))
    options: dict[str, Any] = {}
    for change in changes:
        option, _, number = (part.strip() for part in change.partition("="))
        if option not in ImageSpec.__dataclass_fields__ or not number.isdecimal():
            raise PlanError(
                f"--image {asked!r}: {change!r} is no option of ImageSpec with a whole number, "
                "such as max_pixels=401408"
            )
        options[option] = int(number)
    return ImageSpec.preset(name, **options)
