"""Train a vision-language model on packs with the Trainer of transformers.

    python examples/trainers/train_hf_trainer.py --model MODEL/ --shards shards/ --output_dir out/

The same command resumes exactly after any interruption. For 8 GPUs: `torchrun --nproc-per-node 8`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForImageTextToText, HfArgumentParser, PrinterCallback
from transformers.loss.loss_utils import ForCausalLMLoss

import datapipe


@dataclass
class Data:
    model: str  # folder of a checkpoint
    shards: str  # what `datapipe pack` wrote
    pack: int = 4096  # tokens of a pack


class LoaderTrainer(transformers.Trainer):
    loader: datapipe.Loader  # its state is the last file of each checkpoint

    def get_train_dataloader(self) -> Any:
        # Not the loader itself, whose epoch Trainer would set.
        return iter(self.loader)

    def log(self, logs: dict[str, float], *others: Any) -> None:
        super().log(logs, *others)
        if self.is_world_process_zero() and "loss" in logs:
            print(f"step {self.state.global_step}  loss {logs['loss']}", flush=True)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
            (folder / "loader.part").write_text(json.dumps(self.loader.state_dict()))
            (folder / "loader.part").rename(folder / "loader.json")


def mean_loss(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
    count = num_items_in_batch.clamp(min=1)  # of all ranks and accumulated packs
    return ForCausalLMLoss(outputs.logits, labels, outputs.logits.shape[-1], count)


def train(data: Data, args: transformers.TrainingArguments) -> None:
    if args.n_gpu > 1:
        raise ValueError("a pack is not divided between GPUs; start a process for each by torchrun")
    run = datapipe.RunSpec(max_steps=args.max_steps * args.gradient_accumulation_steps)
    options: dict[str, Any] = {"model": data.model, "pack": data.pack, "epochs": None, "run": run}
    loader = datapipe.make_loader(data.shards, **options, device=args.device)
    saved = [file.parent for file in Path(str(args.output_dir)).glob("checkpoint-*/loader.json")]
    last = max(saved, key=lambda folder: int(folder.name.partition("-")[2]), default=None)
    # Of the checkpoint, as Trainer leaves some models with the weights that they have here.
    model = AutoModelForImageTextToText.from_pretrained(last or data.model, dtype=torch.float32)
    trainer = LoaderTrainer(model, args, compute_loss_func=mean_loss)
    trainer.loader = loader
    trainer.remove_callback(PrinterCallback)
    if last:
        loader.load_state_dict(json.loads((last / "loader.json").read_text()))
    trainer.train(str(last) if last else None)


if __name__ == "__main__":
    parser = HfArgumentParser((Data, transformers.TrainingArguments))  # type: ignore[arg-type]
    parser.set_defaults(max_steps=1000, ignore_data_skip=True, logging_steps=1, disable_tqdm=True)
    try:
        train(*parser.parse_args_into_dataclasses())
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train_hf_trainer: {error}")
