"""Train the reference model with Accelerate: every label counts the same, resume is exact.

python examples/train_accelerate.py SHARDS --pack 1024 --save FOLDER [--resume FOLDER/step-10]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, from any folder
import datapipe
from examples.vlm.data.accumulate import groups_of, labels_of
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.tiny import make_tiny
from examples.vlm.options import parse_short

try:
    from accelerate import Accelerator
except ImportError:
    sys.exit("this example needs Accelerate: pip install accelerate")


def train(asked: argparse.Namespace, accelerator: Accelerator) -> Iterator[tuple[int, float]]:
    """Train on all processes of `accelerate launch`; yields each step's number and loss."""
    vlm, specs = make_tiny()
    optimizer = torch.optim.AdamW(vlm.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    loader = datapipe.make_loader(
        asked.shards,
        **specs,
        **asked.sizes,
        epochs=None,
        # Where the loop ends, also when resumed.
        run=datapipe.RunSpec(max_steps=asked.steps * asked.accumulate),
        meta=["num_items_in_batch"],  # labels over all ranks
        device=accelerator.device,
    )
    # The loader takes its share by itself; a prepared schedule would step once a process.
    model, optimizer = accelerator.prepare(vlm, optimizer)
    accelerator.register_for_checkpointing(loader, schedule)
    if asked.resume:
        accelerator.load_state(str(asked.resume))
    # Groups are taken as a whole, since each of their batches is divided by the labels of all.
    for group in groups_of(loader, count=asked.accumulate, labels=0):
        total = torch.zeros((), device=accelerator.device)
        for batch in group:
            with accelerator.accumulate(model):
                loss = model(make_inputs(batch, vlm.config, vlm.kernel)).sum() / labels_of(group)
                total += loss.detach()
                # DDP averages over processes and Accelerate over batches what is to be summed.
                accelerator.backward(loss * accelerator.num_processes * asked.accumulate)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
        step = schedule.last_epoch
        yield step, float(accelerator.reduce(total))
        if asked.save and (step % asked.save_every == 0 or step == asked.steps):
            accelerator.save_state(str(asked.save / f"step-{step}"))


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, train, and print the losses."""
    asked = parse_short(arguments, __doc__)
    accelerator = Accelerator(gradient_accumulation_steps=asked.accumulate)
    try:
        for step, loss in train(asked, accelerator):
            accelerator.print(f"step {step:4d}  loss {loss:.3f}", flush=True)
        accelerator.end_training()
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train_accelerate: {error}")


if __name__ == "__main__":
    main()
