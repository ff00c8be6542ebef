"""Options of loaders that YAML states for tests: specs are written as their fields."""

from pathlib import Path
from typing import Any

import yaml

import datapipe
from datapipe import ImageSpec

SPECS: dict[str, Any] = {
    "image": ImageSpec,
    "pack": datapipe.PackSpec,
    "batch_size": datapipe.BatchSpec,
    "run": datapipe.RunSpec,
    "device": datapipe.DeviceSpec,
    "cache": datapipe.CacheSpec,
    "workers": datapipe.WorkerSpec,
    "remote": datapipe.RemoteSpec,
    "decoder": datapipe.DaliOptions,
}


def read(name: str) -> Any:
    """Return what `NAME.yaml` of this folder states."""
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text("utf-8"))


def with_specs(options: dict[str, Any], **makers: Any) -> dict[str, Any]:
    """Return options with specs made of their fields; `makers` are those of other options."""
    made = SPECS | makers
    return {
        name: made[name](**value) if name in made and isinstance(value, dict) else value
        for name, value in options.items()
    }


IMAGES = {name: ImageSpec(**fields) for name, fields in read("images").items()}
