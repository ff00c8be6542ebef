"""Train a Qwen2-VL with `transformers.Trainer`: every label counts the same, resume is exact.

python examples/train_hf_trainer.py SHARDS --pack 1024 --save FOLDER [--resume FOLDER/checkpoint-10]
"""

import json
import sys
from pathlib import Path
from tempfile import gettempdir
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, from any folder
from datapipe import Loader, RunSpec, make_loader
from examples.huggingface_models import make_tiny
from examples.vlm.options import parse_short

try:
    from transformers import Trainer, TrainingArguments
    from transformers.loss.loss_utils import ForCausalLMLoss
except ImportError:
    sys.exit("this example needs transformers: pip install transformers accelerate")


class LoaderTrainer(Trainer):
    """Trains on a loader and saves its state, which is exact: Trainer takes no batch ahead."""

    def __init__(self, loader: Loader, args: TrainingArguments, **options: Any) -> None:
        if args.n_gpu > 1 or args.deepspeed or args.fsdp:
            raise ValueError("this trains in one process per GPU, with DDP; start it by torchrun")
        super().__init__(args=args, compute_loss_func=mean_loss, **options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        """Return an iterator: Trainer would send a loader that was resumed back to epoch 0."""
        return iter(self.loader)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            path = Path(output_dir or str(self.args.output_dir), "loader.json")
            path.write_text(json.dumps(self.loader.state_dict()))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        own: Any = self.model  # its weights are saved under names that Trainer would not find in it
        own.load_state_dict(type(own).from_pretrained(resume_from_checkpoint).state_dict())
        state = Path(resume_from_checkpoint, "loader.json").read_text()
        self.loader.load_state_dict(json.loads(state))


def mean_loss(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
    """Divided by the labels that Trainer counts, of all ranks and accumulated batches."""
    count = num_items_in_batch.clamp(min=1)
    return ForCausalLMLoss(outputs.logits, labels, outputs.logits.shape[-1], count)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and train."""
    asked = parse_short(arguments, __doc__)
    try:
        args = TrainingArguments(
            output_dir=str(asked.save or gettempdir()),
            save_strategy="steps" if asked.save else "no",
            save_steps=asked.save_every,
            max_steps=asked.steps,
            gradient_accumulation_steps=asked.accumulate,
            ignore_data_skip=True,  # the loader knows where to go on
            learning_rate=1e-3,
            logging_steps=1,
        )
        model, specs = make_tiny("qwen2-vl")
        run = RunSpec(max_steps=asked.steps * asked.accumulate)
        options = specs | asked.sizes | {"epochs": None, "run": run, "device": args.device}
        LoaderTrainer(make_loader(asked.shards, **options), args, model=model).train(asked.resume)
    except (ValueError, OSError, ImportError) as error:  # Trainer needs accelerate
        sys.exit(f"train_hf_trainer: {error}")


if __name__ == "__main__":
    main()
