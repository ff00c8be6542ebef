"""The loss over a held-out dataset, read from the device once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

import datapipe
from examples.vlm.data.batches import IGNORE, Batch, bring
from examples.vlm.model.inputs import Inputs, make_inputs
from examples.vlm.model.sampling import evaluating
from examples.vlm.model.vlm import VLM
from examples.vlm.parallel.mesh import whole_loss
from examples.vlm.parallel.ranks import Ranks


class Evaluation(NamedTuple):
    """Mean loss in nats over all labels of a held-out dataset, after a step."""

    step: int
    loss: float
    labels: int


def evaluate(
    model: VLM,
    batches: Iterable[Batch],
    ranks: Ranks,
    *,
    step: int = 0,
    autocast: AbstractContextManager[Any] | None = None,
    losses_of: Callable[[Inputs], Tensor] | None = None,
) -> Evaluation:
    """Return the loss of a model over all batches of all ranks; all must call.

    Sums stay on the device until the last batch, so the host prepares batches while the device
    computes. Samples that are repeated to even the ranks out have no labels. `losses_of` replaces a
    model of which this rank has a part.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    with evaluating(model), torch.no_grad(), autocast or nullcontext():
        for batch in batches:
            # CUDA graphs may overwrite the outputs of the batch before.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            inputs = make_inputs(bring(batch, ranks.device), model.config, model.kernel)
            sums[0] += (losses_of or model)(inputs).sum(dtype=torch.float64)
            sums[1] += (inputs.targets != IGNORE).sum()
    whole_loss(sums[:1], ranks)
    total, labels = ranks.total(sums).tolist()
    if not labels:
        raise ValueError(
            "--evaluate: its samples have no labels; give a dataset with answers to learn"
        )
    return Evaluation(step, total / labels, int(labels))


def evaluate_and_print(run: Any, loader: datapipe.Loader) -> Evaluation:
    """Evaluate the model of a `Run` on one epoch, and print the loss."""
    loader.set_epoch(0)  # after an epoch a loader would begin the next one
    pipeline = run.exchange.pipeline

    def watched() -> Iterator[Batch]:
        for batch in loader:
            run.mark("evaluating", run.step)  # else a long evaluation would pass for a hang
            yield batch

    found = evaluate(
        run.model,
        watched(),
        run.ranks,
        step=run.step,
        autocast=run.exchange.autocast(run.techniques, run.ranks.device),
        losses_of=None if pipeline is None else pipeline.evaluate,
    )
    run.ranks.say(f"step {found.step:5d}  held-out loss {found.loss:.4f} ({found.labels:,} labels)")
    return found
