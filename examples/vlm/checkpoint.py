"""Saving and continuing a run: model, optimizer, scaler, random numbers and loader.

A run writes one file. If ranks have parts of the model it writes a folder, by
`torch.distributed.checkpoint`: a step has a file of tensors for each rank, and `rest.pt` with all
that is small; `latest` has the name of the newest whole step. Both continue under all kinds of
parallelism, on any number of ranks.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.tensor import DTensor, distribute_tensor

from examples.vlm.loop import Run

logger = logging.getLogger(__name__)

VERSION = 3  # raised whenever the names or shapes of what is saved change
LATEST, REST = "latest", "rest.pt"
EQUAL = ("scaler", "loader")  # parts of a run that are the same on every rank


def save(path: Path, run: Run, *, sharded: bool) -> None:
    """Write a checkpoint, whole or not at all; all ranks must call.

    If `sharded`, every rank writes its part into a folder.
    """
    model, optimizer, ranks = run.model, run.optimizer, run.ranks
    random = {"cpu": ranks.gather(torch.get_rng_state())}
    if ranks.device.type == "cuda":
        random["cuda"] = ranks.gather(torch.cuda.get_rng_state())
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    states = optimizer.state_dict()["state"]
    for number, name in enumerate(learnt(model, optimizer)):
        tensors |= {f"optimizer.{name}.{k}": v for k, v in states.get(number, {}).items()}
    content = {"version": VERSION, "about": run.about, "step": run.step, "random": random}
    content |= {name: getattr(run, name).state_dict() for name in EQUAL}
    if not sharded:
        if ranks.first:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, {**content, "tensors": tensors})
        return
    folder, latest = path / f"step-{run.step}", path / LATEST
    if latest.is_file() and latest.read_text().strip() == folder.name:
        folder = path / f"step-{run.step}-again"  # the other one is whole, and may be needed
    if ranks.first:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed while it saved
        folder.mkdir(parents=True)
    ranks.wait()
    save_tensors(tensors, checkpoint_id=folder)
    if ranks.first:
        write(folder / REST, content)
        unfinished = path / f"{LATEST}.tmp"
        unfinished.write_text(folder.name)
        unfinished.replace(latest)
        for other in path.glob("step-*"):
            if other != folder:
                shutil.rmtree(other)
    ranks.wait()


def check_path(path: Path, *, sharded: bool) -> None:
    """Check before the first step that there is no checkpoint of the other kind."""
    if path.exists() and path.is_dir() != sharded:
        found, saved = ("file", "folder") if sharded else ("folder", "file")
        raise ValueError(f"{path} is a {found}, and this run saves a {saved}; give --save another")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def load(path: Path, run: Run) -> None:
    """Bring a run to where a checkpoint left it.

    On another number of ranks, only random numbers start again, with a warning.
    """
    folder, content = find(path)
    for name, value in run.about.items():
        if content["about"].get(name) != value:
            raise ValueError(
                f"{path} is of a run with {name} {content['about'].get(name)!r}, and this one has "
                f"{value!r}; give the same options, or start again without --resume"
            )
    if "resident" in content["loader"] and "resident" not in run.loader.state_dict():
        raise ValueError(f"{path} was written with --resident; give it here too")
    model, optimizer, ranks = run.model, run.optimizer, run.ranks
    numbers = {name: number for number, name in enumerate(learnt(model, optimizer))}
    states: dict[int, dict[str, Any]] = {}
    for name, value in fill(model, folder, content, optimizer).items():
        parameter, _, key = name.rpartition(".")
        states.setdefault(numbers[parameter], {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})
    for name in EQUAL:
        getattr(run, name).load_state_dict(content[name])
    if (saved := len(content["random"]["cpu"])) != ranks.world_size and ranks.first:
        said = "%s has random numbers of %d ranks, and there are %d: they start anew"
        logger.warning(said, path, saved, ranks.world_size)
    for name, random in content["random"].items():
        if len(random) == ranks.world_size and name in ("cpu", ranks.device.type):
            put = torch.set_rng_state if name == "cpu" else torch.cuda.set_rng_state
            put(random[ranks.rank])
    run.step = content["step"]


def fill(
    model: nn.Module,
    folder: Path | None,
    content: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, Any]:
    """Fill a model from a checkpoint that was found; each rank takes its part.

    Return the states of the optimizer, if there is one, by parameter and kind.
    """
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    likes = weights
    if optimizer is not None:
        states = {f"optimizer.{name}": p.detach() for name, p in learnt(model, optimizer).items()}
        likes = weights | states

    def like(name: str) -> Tensor | None:
        """Return the tensor with this name, or the parameter that a state belongs to, or None."""
        return likes.get(name, likes.get(name.rpartition(".")[0]))

    found: dict[str, Any] = {}
    if folder is None:
        tensors = content["tensors"].items()
        found = {k: part_of(v, own) for k, v in tensors if (own := like(k)) is not None}
    else:
        about: dict[str, Any] = FileSystemReader(folder).read_metadata().state_dict_metadata
        for name, saved in about.items():
            if (own := like(name)) is not None:
                # Beside averages of the parameter's shape there is a count of steps.
                room = own if saved.size == own.shape else torch.empty(saved.size)
                kind = saved.properties.dtype
                found[name] = weights.get(name, torch.zeros_like(room, dtype=kind))
        with warnings.catch_warnings():
            # One process alone needs no process group, which torch warns of.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load_tensors(found, checkpoint_id=folder)
    model.load_state_dict({name.removeprefix("model."): found.pop(name) for name in weights})
    return {name.removeprefix("optimizer."): value for name, value in found.items()}


def part_of(value: Any, like: Tensor) -> Any:
    """Return the part of a whole tensor that this rank has of another of its shape."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def learnt(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters by name, in the order in which an optimizer numbers their states."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: p for group in optimizer.param_groups for p in group["params"]}


def find(path: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the folder of tensors of a checkpoint, None if it is one file, and the rest of it."""
    folder = None
    if path.is_dir():
        if not (path / LATEST).is_file():
            raise ValueError(f"{path} has no file {LATEST!r}; give the path that --save wrote")
        folder = path / (path / LATEST).read_text().strip()
    file = path if folder is None else folder / REST
    if not file.is_file():
        raise ValueError(f"{file}: there is no checkpoint; give the path that --save wrote")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{file}: this is no checkpoint ({error}); give another") from error
    if not isinstance(content, dict) or "version" not in content:
        raise ValueError(f"{file}: this is no checkpoint of this program; give another")
    if content["version"] != VERSION:
        raise ValueError(
            f"{file} has version {content['version']}, and this program reads {VERSION}: the parts "
            "of the model have changed; use the program that wrote it, or start again"
        )
    return folder, content
