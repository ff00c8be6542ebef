"""Train a vision-language model on packs with Accelerate.

    accelerate launch examples/trainers/train_accelerate.py MODEL/ shards/ out/ --pack 8192

The same command resumes exactly after any interruption.
"""

import argparse
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from transformers import AutoModelForImageTextToText

import datapipe


def train(asked: argparse.Namespace) -> None:
    accelerator = Accelerator(
        gradient_accumulation_steps=asked.accumulate,
        mixed_precision="bf16" if torch.cuda.is_available() else "no",
        # Of the vision tower, in packs without an image.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    model = AutoModelForImageTextToText.from_pretrained(asked.model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    run = datapipe.RunSpec(max_steps=asked.steps * asked.accumulate)
    options: dict[str, Any] = {"model": asked.model, "pack": asked.pack, "epochs": None, "run": run}
    meta = ["num_items_in_batch"]  # labels over all ranks
    loader = datapipe.make_loader(asked.shards, **options, meta=meta, device=accelerator.device)
    # The loader takes its share by itself; a prepared schedule would step once a process.
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader, schedule)
    saved = asked.out.glob("step-*")
    if last := max(saved, key=lambda folder: int(folder.name.partition("-")[2]), default=None):
        accelerator.load_state(str(last))
    packs = iter(loader)
    while group := list(islice(packs, asked.accumulate)):
        labels = max(1, sum(pack.pop("num_items_in_batch") for pack in group))
        total = torch.zeros((), device=accelerator.device)
        for pack in group:
            with accelerator.accumulate(model):
                loss = model(**pack, num_items_in_batch=labels).loss
                total += loss.detach()
                # DDP averages over processes and Accelerate over packs what is to be summed.
                accelerator.backward(loss * accelerator.num_processes * asked.accumulate)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
        step = schedule.last_epoch
        accelerator.print(f"step {step}  loss {float(accelerator.reduce(total))}", flush=True)
        if step % asked.save_every == 0 or step == asked.steps:
            accelerator.save_state(str(asked.out / "part"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (asked.out / "part").rename(asked.out / f"step-{step}")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "shards", "out"):
        parser.add_argument(name, type=Path)
    numbers = {"pack": 4096, "steps": 1000, "accumulate": 1, "save-every": 100, "lr": 1e-5}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    try:
        train(parser.parse_args())
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train_accelerate: {error}")
