"""Train a vision-language model on packs with Ray Train.

    python examples/train_ray.py MODEL/ shards/ out/ --workers 8 --pack 8192

The same command resumes exactly after any interruption, and with the same `--packs` also on another
number of workers. `--gpu` gives each a GPU, `--decode ray` decodes on the CPUs of all nodes.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from transformers import AutoModelForImageTextToText

import datapipe


def train(asked: dict[str, Any]) -> None:
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    learner = AutoModelForImageTextToText.from_pretrained(asked["model"], dtype=torch.float32)
    unused = {"find_unused_parameters": True}  # the vision tower, in packs without an image
    model: Any = prepare_model(learner.train(), parallel_strategy_kwargs=unused)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=asked["lr"])
    loader = datapipe.make_loader(
        asked["shards"],
        model=asked["model"],
        pack=asked["pack"],
        batch_size=(asked["packs"] or world) // world,
        epochs=None,
        run=datapipe.RunSpec(max_steps=asked["steps"]),
        meta=["num_items_in_batch"],  # labels over all ranks
        device=get_device(),
        workers=asked["decode"],
    )
    step = 0
    parts: dict[str, Any] = {"model": learner, "optimizer": optimizer, "loader": loader}
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step, states = torch.load(Path(folder, "state.pt"), map_location="cpu")
        for name, part in parts.items():
            part.load_state_dict(states[name])
    for pack in loader:
        labels = max(1, pack.pop("num_items_in_batch"))
        loss = model(**pack, num_items_in_batch=labels).loss
        (loss * world).backward()  # DDP averages what is to be summed
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        torch.distributed.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss.item()}", flush=True)
        if step % asked["save_every"] == 0 or step == asked["steps"]:
            with tempfile.TemporaryDirectory() as folder:
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save((step, states), Path(folder, "state.pt"))
                whole = Checkpoint(folder) if rank == 0 else None
                ray.train.report({"step": step, "loss": loss.item()}, checkpoint=whole)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "shards", "out"):
        parser.add_argument(name, type=lambda path: Path(path).absolute())
    numbers = {"workers": 2, "packs": 0, "pack": 4096, "steps": 1000, "save-every": 100, "lr": 1e-5}
    for name, default in {**numbers, "max-failures": 3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--decode", choices=["threads", "processes", "ray"], default="threads")
    asked = parser.parse_args()
    scaling = ScalingConfig(num_workers=asked.workers, use_gpu=asked.gpu)
    again = FailureConfig(max_failures=asked.max_failures)
    run = RunConfig(name=asked.out.name, storage_path=str(asked.out.parent), failure_config=again)
    TorchTrainer(train, train_loop_config=vars(asked), scaling_config=scaling, run_config=run).fit()
