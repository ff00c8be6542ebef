"""Train a vision-language model on packs with Lightning.

    python examples/trainers/train_lightning.py MODEL/ shards/ out/ --pack 8192

The same command resumes exactly after any interruption. It takes all GPUs of the machine.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from transformers import AutoModelForImageTextToText

import datapipe


class Packs(pl.LightningModule):
    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__()
        model = AutoModelForImageTextToText.from_pretrained(asked.model, dtype=torch.float32)
        self.model, self.asked = model.train(), asked
        self.summed, self.labels = torch.zeros(()), 0  # of the packs of a step so far

    def train_dataloader(self) -> datapipe.Loader:
        """Make an epoch once ranks and device are known; Lightning saves and loads its state."""
        options: dict[str, Any] = {"model": self.asked.model, "pack": self.asked.pack}
        options["meta"] = ["num_items_in_batch"]
        return datapipe.make_loader(self.asked.shards, **options, device=self.device)

    def training_step(self, pack: dict[str, Any], index: int) -> torch.Tensor:
        """Return the summed loss, times what DDP (ranks) and Lightning (packs) divide it by."""
        self.labels += pack.pop("num_items_in_batch")  # of all ranks
        loss: torch.Tensor = self.model(**pack, num_items_in_batch=1).loss
        self.summed = self.summed.to(loss) + loss.detach()
        return loss * self.trainer.world_size * self.trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide by the labels of all packs of the step; Lightning clips gradients after this."""
        summed: Any = self.all_gather(self.summed)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(1, self.labels)
        loss = float(summed.sum() / max(1, self.labels))
        self.print(f"step {self.global_step + 1}  loss {loss}", flush=True)
        self.summed, self.labels = torch.zeros(()), 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.asked.lr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "shards", "out"):
        parser.add_argument(name, type=Path)
    numbers = {"pack": 4096, "steps": 1000, "accumulate": 1, "save-every": 100, "lr": 1e-5}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    save = partial(pl.callbacks.ModelCheckpoint, save_top_k=-1, save_last=True)
    trainer = pl.Trainer(
        max_steps=asked.steps,
        accumulate_grad_batches=asked.accumulate,
        gradient_clip_val=1.0,
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
        strategy="ddp_find_unused_parameters_true" if torch.cuda.device_count() > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        callbacks=[save(asked.out, every_n_train_steps=asked.save_every)],
    )
    try:
        trainer.fit(Packs(asked), ckpt_path="last")
        trainer.save_checkpoint(asked.out / "last.ckpt")
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train_lightning: {error}")
