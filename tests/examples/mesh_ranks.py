"""One of four processes that train over meshes, started by `test_vlm_mesh.py`.

Every check compares with one process: this one, with the whole model and the batches of all ranks.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

import datapipe
from examples.vlm.data.batches import LABELS
from examples.vlm.loop import Run, train_step
from examples.vlm.measure.by_dataset import DatasetSums
from examples.vlm.model.config import ModelConfig, VisionConfig
from examples.vlm.model.inputs import IGNORE, following, make_inputs
from examples.vlm.parallel.connect import Kind, Parallel, connect
from examples.vlm.parallel.mesh import distribute, make_mesh
from examples.vlm.parallel.ranks import Ranks, joined
from examples.vlm.techniques import Techniques

from .test_vlm_model import FIXED, load, make_model

RANKS = 4
CONFIG = ModelConfig(
    # Its MLP has 85 hidden units, which divide over no number of ranks.
    vision=VisionConfig(width=32, layers=2, heads=4, patch=4, image_size=16, max_pixels=640),
    width=32,
    layers=2,
    heads=8,
    kv_heads=2,
)
SHARES = {"never": 0.1, "even": 0.4, "odd": 0.3, "ninth": 0.2}
# (data, tensor, context) and the model.
MESHES = {
    "1x2x2": (2, 2, CONFIG),
    "2x2x1": (2, 1, CONFIG),
    "2x1x2": (1, 2, CONFIG),
    "1x1x4": (1, 4, CONFIG),  # more ranks than heads of keys
    "1x4x1": (4, 1, replace(CONFIG, kv_heads=4)),
    "4x1x1": (1, 1, CONFIG),
}


def batches_of(shards: str, mesh: DeviceMesh, count: int) -> list[dict[str, Any]]:
    pack = datapipe.PackSpec(240, multiple_of=4)
    loader = load(Path(shards), FIXED, pack=pack, epochs=None, mesh=mesh)
    return [named(batch) for batch in islice(loader, count)]


def dataset_of(key: str) -> str:
    number = int(key)
    return "ninth" if number == 9 else "odd" if number % 2 else "even"


def named(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with samples of several datasets, as a mixture has them."""
    return batch | {"dataset": [dataset_of(key) for key in batch["key"]]}


def sums_of(ranks: Ranks) -> DatasetSums:
    return DatasetSums(lambda: SHARES, ranks)


def gathered(thing: Any) -> list[Any]:
    """Gather a thing from every rank."""
    found = [None] * RANKS
    dist.all_gather_object(found, thing)
    return found


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def same(got: Tensor, wanted: Tensor, name: str) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10, msg=lambda m: f"{name}: {m}")


def make_run(config: ModelConfig, ranks: Ranks, kernel: str, kind: Kind, **options: Any) -> Run:
    techniques = Techniques(clip=0.5, **options)
    model = make_model(kernel, config)
    techniques.apply(model)
    if ranks.mesh is not None:
        distribute(model, ranks.mesh)
    exchange = connect(model, Parallel(kind=kind), techniques, ranks)
    return Run(
        model=model,
        loader=None,  # type: ignore[arg-type]  # batches are given to each step
        techniques=techniques,
        optimizer=techniques.make_optimizer(model, rate=1.0, decay=0.1),
        scaler=techniques.scaler(ranks.device),
        ranks=ranks,
        exchange=exchange,
        peak_rate=1e-2,
        rate_steps=10,
        rate_warmup=0,
    )


def joined_batches(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The batches of all data ranks in a step, for one process: their labels count once."""
    return [batch if not number else batch | {LABELS: 0} for number, batch in enumerate(batches)]


def ranks_of(tensor: int, context: int) -> Ranks:
    ranks = Ranks(dist.get_rank(), RANKS, torch.device("cpu"))
    return ranks._replace(mesh=make_mesh(ranks, tensor, context))


def check_steps(
    shards: str, name: str, kernel: str = "split", kind: Kind = "ddp", **options: Any
) -> None:
    """Losses, also by dataset, gradients and weights of three steps are those of one process."""
    tensor, context, config = MESHES[name]
    ranks = ranks_of(tensor, context)
    batches = batches_of(shards, ranks.mesh, 3)
    everyone = gathered(batches)[:: tensor * context]  # peers have the same
    run = make_run(config, ranks, kernel, kind, **options)
    alone = make_run(config, Ranks(0, 1, ranks.device), "split", kind, **options)
    sums, own = sums_of(ranks), sums_of(alone.ranks)
    for step, batch in enumerate(batches):
        wanted = train_step(alone, joined_batches([each[step] for each in everyone]), own)
        same(ranks.total(train_step(run, [batch], sums)), wanted, "loss")
        for one, other in zip(sums.since_last(), own.since_last(), strict=True):
            assert one._replace(loss=None) == other._replace(loss=None)
            assert (one.loss or 0) == pytest.approx(other.loss or 0, rel=1e-9)
        found = dict(run.model.named_parameters())
        for key, parameter in alone.model.named_parameters():
            gradient = found[key].grad
            if not parameter.requires_grad:
                assert gradient is None
                continue
            assert parameter.grad.any(), key
            same(whole(gradient), parameter.grad, f"clipped gradient of {key}, step {step}")
            same(whole(found[key]), parameter, f"{key} after step {step}")


def check_sums(shards: str) -> None:
    """Blocks sum over the ranks once behind each half, and once in the backward pass of each."""
    ranks = ranks_of(2, 1)
    batch = batches_of(shards, ranks.mesh, 1)[0]
    model = make_model("split", CONFIG)
    distribute(model, ranks.mesh)
    inputs = make_inputs(batch, CONFIG, "split")
    with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
        model(inputs).sum().backward()
    layers = CONFIG.layers + CONFIG.vision.layers
    assert mode.get_total_counts() == 4 * layers, mode.get_comm_counts()


def check_datasets(shards: str) -> None:
    """Without a mesh, and of padded batches, sums by dataset are those of one process too."""
    ranks = Ranks(dist.get_rank(), RANKS, torch.device("cpu"))
    sums, alone = sums_of(ranks), sums_of(Ranks(0, 1, ranks.device))
    loader = load(Path(shards), FIXED, batch_size=3, rank=ranks.rank, world_size=RANKS)
    own = list(map(named, loader))
    for found, batches in ((sums, own), (alone, chain(*gathered(own)))):
        for batch in batches:
            targets = following(batch["labels"]).flatten()
            found.add(batch, targets, (targets != IGNORE).double())
    figures = sums.since_last()
    assert figures == alone.since_last()
    assert sum(each.samples for each in figures) == 25  # repeats at the end do not count


CHECKS: dict[str, Callable[[str], None]] = {
    **{f"steps {name}": partial(check_steps, name=name) for name in MESHES},
    **{
        f"fsdp {name}": partial(check_steps, name=name, kind="fsdp")
        for name in ("1x2x2", "2x2x1", "2x1x2")
    },
    **{kind: partial(check_steps, name="1x1x4", kernel=kind) for kind in ("sdpa", "plain")},
    "sums": check_sums,
    "datasets": check_datasets,
    "recompute": partial(check_steps, name="1x2x2", recompute="all", freeze_vision=True),
    "foreach": partial(check_steps, name="2x2x1", optimizer="foreach"),
}


def main(shards: str, folder: str) -> None:
    torch.set_num_threads(1)
    errors = dict.fromkeys(CHECKS, "")
    with joined("cpu", 150):
        for name, check in CHECKS.items():
            try:
                check(shards)
            except Exception:
                errors[name] = traceback.format_exc()
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
