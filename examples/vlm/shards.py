"""Checkpoints to which every rank writes its part, by `torch.distributed.checkpoint`.

A folder has steps, and a file `latest` with the name of the newest whole one. A step has a file of
tensors for each rank, their index, and `rest.pt` with all that is small.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.tensor import DTensor, distribute_tensor

from examples.vlm import checkpoint
from examples.vlm.parallel.ranks import Ranks

LATEST, REST = "latest", "rest.pt"


def save(path: Path, parts: dict[str, Any], content: dict[str, Any], ranks: Ranks) -> None:
    """Write the ranks' parts, then point to them, then remove those of earlier steps.

    Args:
        path: a folder, made where it is missing.
        parts: what has a `state_dict()`, by name.
        content: further entries of the file that is small.
        ranks: all of which call.

    Raises:
        ValueError: there is a file at `path`.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file, and sharded checkpoints need a folder; give another")
    folder = path / f"step-{content['step']}"
    if ranks.first:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed while it saved
        folder.mkdir(parents=True)
    ranks.wait()
    model, optimizer = parts["model"], parts["optimizer"].state_dict()
    save_tensors(tensors_of(model.state_dict(), optimizer["state"]), checkpoint_id=folder)
    if ranks.first:
        rest = {name: p.state_dict() for name, p in parts.items() if name not in checkpoint.TENSORS}
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer["param_groups"]
        ]
        checkpoint.write(folder / REST, {**content, **rest, "groups": groups})
        unfinished = path / f"{LATEST}.tmp"
        unfinished.write_text(folder.name)
        unfinished.replace(path / LATEST)
        for other in path.glob("step-*"):
            if other != folder:
                shutil.rmtree(other)
    ranks.wait()


def newest(path: Path) -> Path:
    """Return the folder of the newest whole checkpoint.

    Raises:
        ValueError: there is none.
    """
    if not (path / LATEST).is_file():
        raise ValueError(
            f"{path}: this is no checkpoint, for want of a file {LATEST!r}; give the path that "
            "--save wrote"
        )
    return path / (path / LATEST).read_text().strip()


def load(folder: Path, content: dict[str, Any], parts: dict[str, Any]) -> None:
    """Fill model and optimizer from the parts that ranks wrote, each rank with its own."""
    model, optimizer = parts["model"], parts["optimizer"]
    states = empty_states(folder, parameters_of(optimizer))
    tensors = tensors_of(model.state_dict(), states)
    with warnings.catch_warnings():
        # One process alone needs no process group, which torch warns of.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load_tensors(tensors, checkpoint_id=folder)
    model.load_state_dict({name[6:]: t for name, t in tensors.items() if name.startswith("model.")})
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(
        {
            "state": states,
            "param_groups": [
                {**saved, "params": group["params"]}
                for saved, group in zip(content["groups"], groups, strict=True)
            ],
        }
    )


def empty_states(folder: Path, parameters: list[nn.Parameter]) -> dict[int, dict[str, Tensor]]:
    """Make room for the states of an optimizer in a folder, on each rank for its part."""
    known: dict[str, Any] = FileSystemReader(folder).read_metadata().state_dict_metadata
    states: dict[int, dict[str, Tensor]] = {}
    for name, about in known.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            number, _, key = rest.partition(".")
            like, dtype = parameters[int(number)].detach(), about.properties.dtype
            # Beside averages of the parameter's shape there is a count of steps.
            same = about.size == like.shape
            room = like if same else torch.empty(about.size)
            states.setdefault(int(number), {})[key] = torch.zeros_like(room, dtype=dtype)
    return states


def load_model(folder: Path, model: nn.Module) -> None:
    """Fill a model alone from the parts that ranks wrote."""
    tensors = tensors_of(model.state_dict(), {})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load_tensors(tensors, checkpoint_id=folder)
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items()})


def load_whole(content: dict[str, Any], parts: dict[str, Any]) -> None:
    """Fill model and optimizer from the tensors of one file; each rank takes its part."""
    model, optimizer = parts["model"], parts["optimizer"]
    own = model.state_dict()
    model.load_state_dict({name: part_of(t, own[name]) for name, t in content["model"].items()})
    saved, parameters = content["optimizer"], parameters_of(optimizer)
    state = {
        number: {
            key: part_of(value, parameters[number]) if isinstance(value, Tensor) else value
            for key, value in values.items()
        }
        for number, values in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})


def tensors_of(model: dict[str, Tensor], states: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return all tensors of model and optimizer by one name each."""
    found = {f"model.{name}": tensor for name, tensor in model.items()}
    for number, values in states.items():
        found |= {f"optimizer.{number}.{key}": value for key, value in values.items()}
    return found


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters in the order in which an optimizer numbers their states."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole tensor that this rank has of another of its shape."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
