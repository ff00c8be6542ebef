"""Saving a run and going on with it: model, optimizer, scaler, random numbers and loader.

A run writes one file. Under FSDP it writes a folder, in which every rank has written its part. Both
go on under either, and on any number of ranks.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.vlm import shards
from examples.vlm.parallel.ranks import Ranks

logger = logging.getLogger(__name__)

VERSION = 2  # raised whenever the names or shapes of what is saved change
TENSORS = ("model", "optimizer")
"""Parts of which each rank may have a part."""


def save(
    path: Path,
    parts: dict[str, Any],
    step: int,
    about: dict[str, Any],
    ranks: Ranks,
    *,
    sharded: bool = False,
) -> None:
    """Write a checkpoint, whole or not at all; all ranks must call.

    Args:
        path: replaced where it is there.
        parts: what has a `state_dict()`, by name.
        step: steps that were made.
        about: what must be the same when the run goes on, such as the model's sizes.
        ranks: random numbers of all of them are kept.
        sharded: whether every rank writes its part, into a folder; else the first writes a file.

    Raises:
        ValueError: there is a file where a folder goes.
    """
    random = {"cpu": ranks.gather(torch.get_rng_state())}
    if ranks.device.type == "cuda":
        random["cuda"] = ranks.gather(torch.cuda.get_rng_state())
    content = {"version": VERSION, "about": about, "step": step, "random": random}
    if sharded:
        shards.save(path, parts, content, ranks)
    elif ranks.first:
        content |= {name: part.state_dict() for name, part in parts.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file, whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def load(path: Path, parts: dict[str, Any], about: dict[str, Any], ranks: Ranks) -> int:
    """Bring a run to where a checkpoint left it; returns the steps that were made.

    On another number of ranks everything goes on but random numbers, which a warning says.

    Raises:
        ValueError: there is no such checkpoint, or it is of another model.
    """
    folder, content = find(path)
    for name, value in about.items():
        if content["about"].get(name) != value:
            raise ValueError(
                f"{path} is of a run with {name} {content['about'].get(name)!r}, and this one has "
                f"{value!r}; give the same options, or start anew without --resume"
            )
    if folder is None:
        shards.load_whole(content, parts)
    else:
        shards.load(folder, content, parts)
    for name, part in parts.items():
        if name not in TENSORS:
            part.load_state_dict(content[name])
    if (saved := len(content["random"]["cpu"])) != ranks.world_size and ranks.first:
        logger.warning(
            "%s has random numbers of %d ranks, and there are %d: they start anew",
            path,
            saved,
            ranks.world_size,
        )
    for name, states in content["random"].items():
        if len(states) == ranks.world_size and name in ("cpu", ranks.device.type):
            put = torch.set_rng_state if name == "cpu" else torch.cuda.set_rng_state
            put(states[ranks.rank])
    return int(content["step"])


def load_model(path: Path, model: nn.Module) -> None:
    """Fill a model of this process alone from a checkpoint of any number of ranks."""
    folder, content = find(path)
    if folder is None:
        model.load_state_dict(content["model"])
    else:
        shards.load_model(folder, model)


def find(path: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the folder of tensors of a checkpoint, None if it is one file, and the rest of it.

    Raises:
        ValueError: there is no such checkpoint.
    """
    folder = shards.newest(path) if path.is_dir() else None
    return folder, read(path if folder is None else folder / shards.REST)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote.

    Raises:
        ValueError: there is no such file, or it is of another version.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no checkpoint; give the path that --save wrote")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: this is no checkpoint ({error}); give another") from error
    if not isinstance(content, dict) or "version" not in content:
        raise ValueError(f"{path}: this is no checkpoint of this program; give another")
    if content["version"] != VERSION:
        raise ValueError(
            f"{path} is of version {content['version']}, and this program reads {VERSION}: the "
            "parts of the model have changed; go on with the program that wrote it, or start anew"
        )
    return content
