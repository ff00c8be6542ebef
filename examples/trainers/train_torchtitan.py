"""Train a vision-language model on packs with a loop in the style of torchtitan.

    python examples/trainers/train_torchtitan.py MODEL/ shards/ out/ --pack 8192

The same command resumes exactly after any interruption. For 8 GPUs: `torchrun --nproc-per-node 8`.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from transformers import AutoModelForImageTextToText

import datapipe


class Progress:  # as torch.distributed.checkpoint saves and loads it
    def __init__(self, model: Any, optimizer: Any, loader: datapipe.Loader) -> None:
        self.model, self.optimizer, self.loader, self.step = model, optimizer, loader, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model_state_dict": model, "optim_state_dict": optimizer, "step": self.step}
        return state | {"loader": json.dumps(self.loader.state_dict())}  # one value, not its keys

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state.pop("step")
        self.loader.load_state_dict(json.loads(state.pop("loader")))
        set_state_dict(self.model, self.optimizer, **state)


def train(asked: argparse.Namespace) -> None:
    gpu, ranks = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if gpu else "cpu")
    model: Any = AutoModelForImageTextToText.from_pretrained(asked.model, dtype=torch.float32)
    model.to(device).train()
    if ranks > 1:
        torch.distributed.init_process_group()
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    options: dict[str, Any] = {"model": asked.model, "pack": asked.pack, "epochs": None}
    options |= {"run": datapipe.RunSpec(max_steps=asked.steps), "meta": ["num_items_in_batch"]}
    loader = datapipe.make_loader(asked.shards, **options, device=device)
    progress = Progress(model, torch.optim.AdamW(model.parameters(), lr=asked.lr), loader)
    saved = [file.parent for file in asked.out.glob("step-*/.metadata")]  # is written last
    if last := max(saved, key=lambda folder: int(folder.name.partition("-")[2]), default=None):
        dcp.load({"progress": progress}, checkpoint_id=last)
    for pack in loader:
        labels = max(1, pack.pop("num_items_in_batch"))  # over all ranks
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            loss = model(**pack, num_items_in_batch=labels).loss
        (loss * ranks).backward()  # DDP averages what is to be summed
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        progress.optimizer.step()
        progress.optimizer.zero_grad()
        progress.step += 1
        if ranks > 1:
            torch.distributed.all_reduce(loss)
        print(f"step {progress.step}  loss {loss.item()}", flush=True)
        if progress.step % asked.save_every == 0 or progress.step == asked.steps:
            dcp.save({"progress": progress}, checkpoint_id=asked.out / f"step-{progress.step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "shards", "out"):
        parser.add_argument(name, type=Path)
    numbers = {"pack": 4096, "steps": 1000, "save-every": 100, "lr": 1e-5}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    try:
        train(parser.parse_args())
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train_torchtitan: {error}")
