"""Values of options from their text: times, shares, functions, images, output files."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.cli.fields import field_value
from datapipe.declared import check_value
from datapipe.errors import PlanError
from datapipe.quantities import Bytes

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SHARES = {"": 1.0, "%": 0.01}


def parse_seconds(text: str, option: str) -> float:
    """Parse a time in seconds: `60s`, `120ms`, `2min` or `60`."""
    return _parse_unit(text, _SECONDS, f"{option} {text!r}: give a time such as 60s, 120ms or 2min")


def parse_share(text: str, option: str) -> float:
    """Parse a share, `1%` or `0.01`, as a number from 0 to 1."""
    return _parse_unit(text, _SHARES, f"{option} {text!r}: give a share such as 1% or 0.01")


def parse_shares(text: str, option: str) -> dict[str, float]:
    """Parse shares with names: `train=0.98,val=0.02`."""
    pairs = [part.partition("=") for part in text.split(",")]
    shares = {name.strip(): parse_share(share, f"{option}: {name}") for name, _, share in pairs}
    if len(shares) < len(pairs):
        raise PlanError(f"{option} names a part twice; give each one share")
    return shares


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Parse whole numbers: `0,1,2`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PlanError(f"{option} {text!r}: give whole numbers such as 0,1,2,4") from None


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """Parse names: `key,source`."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def names_among(*known: str) -> Callable[[str, str], tuple[str, ...]]:
    """Return a parser of some of these names: `cpu,dali`."""

    def parse(text: str, option: str) -> tuple[str, ...]:
        names = tuple(map(str.strip, text.split(",")))
        for name in names:
            if name not in known:
                raise PlanError(f"{option} {text!r}: {name!r} is not one of {', '.join(known)}")
        return names

    return parse


def parse_bytes(text: str, option: str) -> Any:
    """Parse a size in bytes: `8GB`."""
    return check_value(option, text, Bytes, PlanError)


def parse_json_object(text: str, option: str) -> dict[str, Any]:
    """Parse a JSON object, or read it from the file that the text names."""
    try:
        found = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{option} {text!r}: give a JSON object, or a file of one ({error})"
        ) from None
    if not isinstance(found, dict):
        raise PlanError(f"{option} {text!r}: it has no JSON object; give {{...}}")
    return found


def _parse_unit(text: str, units: dict[str, float], message: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z%]*)\s*", text)
    if found is None or found[2].lower() not in units:
        raise PlanError(message)
    return float(found[1]) * units[found[2].lower()]


def refuse_unwritable(**files: Path | None) -> None:
    """Refuse output files, by option, that could not be written; a report needs matplotlib."""
    for name, path in files.items():
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise PlanError(f"--{name} {path}: give a file in a folder that exists")
    if files.get("report") is not None:
        from datapipe.report.charts import plot

        plot()


def resolve_target(name: str, option: str) -> Callable[..., Any]:
    """Import the function that `module:function` or `file.py:function` names.

    Modules are looked up in the current folder too; `option` is named in errors.
    """
    module, colon, path = name.rpartition(":")
    if not (colon and module and path):
        raise PlanError(f"{option} {name!r}: give module:function, such as train:make_loader")
    found: Any = _import(module, f"{option} {name!r}")
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise PlanError(f"{option} {name!r}: {module} has no {path!r}")
        found = getattr(found, attribute)
    if not callable(found):
        raise PlanError(f"{option} {name!r}: this is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _import(name: str, asked: str) -> Any:
    file, folder, where = Path(name), Path.cwd(), "from the current folder"
    if file.suffix == ".py":
        if not file.is_file():
            raise PlanError(f"{asked}: no file {file}")
        # By its name, so that worker processes import it too.
        folder, name = file.resolve().parent, file.stem
        where = f"from {folder}"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise PlanError(f"{asked}: there is no module {name!r} {where}") from None
        raise PlanError(f"{asked}: importing {name} fails: {error}") from error
    except Exception as error:
        kind = type(error).__name__
        raise PlanError(f"{asked}: importing {name} raises {kind}: {error}") from error


def parse_image(text: str | None, dtype: str | None = None) -> ImageSpec | None:
    """Make the `ImageSpec` of `--image` and `--dtype`; None if images are left out.

    `text` is "none"; "336"; "size=336,resize=pad,normalize=clip"; "qwen2-vl,max_pixels=401408";
    None for the default of `make_loader`. `dtype` is "uint8", "float32" or "bfloat16".
    """
    from datapipe.decode.spec import ImageSpec

    if text == "none":
        if dtype is not None:
            raise PlanError(f"--dtype {dtype} needs images, and --image none leaves them out")
        return None
    first, *others = (part.strip() for part in (text or "").split(","))
    preset = None
    if first[:1].isdecimal():
        others = [f"size={first}", *others]
    elif "=" in first:
        others = [first, *others]
    else:
        preset = first or None
    options: dict[str, Any] = {}
    for part in filter(None, others):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name not in ImageSpec.__dataclass_fields__ or name == "dtype":
            raise PlanError(
                f"--image {text!r}: {name!r} is not an option of ImageSpec that can be given here"
            )
        # The name of a switch turns it on.
        reading = value if equals else True
        options[name] = field_value(ImageSpec, name, reading, f"--image {text!r}: {name}")
    if dtype is not None:
        options["dtype"] = field_value(ImageSpec, "dtype", dtype, "--dtype")
    return ImageSpec(**options) if preset is None else ImageSpec.preset(preset, **options)


def parse_array_image(size: str | None, image: str | None) -> ImageSpec | None:
    """Make the `ImageSpec` of `--image-size` or `--image`."""
    if size is not None and image is not None:
        raise PlanError("--image-size and --image both say how large images are; give one")
    if size is not None and not all(side.isdecimal() for side in size.split("x")):
        raise PlanError(f"--image-size {size!r}: give a side such as 336, or 480x640")
    return parse_image(size if image is None else image)
