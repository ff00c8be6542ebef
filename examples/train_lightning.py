"""Train the reference model under Lightning: every label counts the same, resume is exact.

python examples/train_lightning.py SHARDS --pack 1024 --save FOLDER [--resume FOLDER/last.ckpt]
"""

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, from any folder
import datapipe
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.tiny import make_tiny
from examples.vlm.options import parse_short

try:
    import pytorch_lightning as pl
except ImportError:
    sys.exit("this example needs Lightning: pip install pytorch-lightning")


class Captioner(pl.LightningModule):
    """A model and the loader that feeds it; `options` are those of `make_loader`."""

    def __init__(self, shards: str, **options: Any) -> None:
        super().__init__()
        self.vlm, specs = make_tiny()
        self.shards, self.options = shards, {"meta": ["num_items_in_batch"], **specs, **options}
        self.summed, self.labels = torch.zeros(()), 0  # of the batches of a step so far

    def train_dataloader(self) -> datapipe.Loader:
        """Make an epoch once ranks and device are known; Lightning saves and loads its state."""
        return datapipe.make_loader(self.shards, device=self.device, **self.options)

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        """Return the summed loss, times what DDP (ranks) and Lightning (batches) divide it by."""
        loss: torch.Tensor = self.vlm(make_inputs(batch, self.vlm.config, self.vlm.kernel)).sum()
        self.summed = self.summed.to(loss) + loss.detach()
        self.labels += batch["num_items_in_batch"]  # of all ranks
        return loss * self.trainer.world_size * self.trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide by the labels of all batches of the step; Lightning clips gradients after this."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.labels
        summed: Any = self.all_gather(self.summed)
        self.log("loss", summed.sum() / self.labels, prog_bar=True)
        self.summed, self.labels = torch.zeros(()), 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and train."""
    asked = parse_short(arguments, __doc__)
    every = {"every_n_train_steps": asked.save_every, "save_top_k": -1}
    trainer = pl.Trainer(
        max_epochs=-1,
        max_steps=asked.steps,
        accumulate_grad_batches=asked.accumulate,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=bool(asked.save),
        callbacks=[pl.callbacks.ModelCheckpoint(asked.save, **every)] if asked.save else None,
    )
    try:
        trainer.fit(Captioner(asked.shards, **asked.sizes), ckpt_path=asked.resume)
        if asked.save:
            trainer.save_checkpoint(asked.save / "last.ckpt")
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train_lightning: {error}")


if __name__ == "__main__":
    main()
