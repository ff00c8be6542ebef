"""Pipeline parallelism: the encoder on the first rank, blocks of the language model on the others.

The batches of a step are the micro-batches of a schedule of torch. Every rank loads all of them for
positions, targets and bounds of samples, so only activations and their gradients are sent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from examples.vlm.measure.flops import Formula
from examples.vlm.model.inputs import Inputs
from examples.vlm.model.vlm import VLM
from examples.vlm.parallel.ranks import Ranks


class Elsewhere(nn.Module):
    """Stands for a part of the model that another rank has; passes its input on."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return x


class Stage(nn.Module):
    """Part of the model that this rank has, for `PipelineStage`.

    Stages exchange tensors of one shape, so activations are padded to the `tokens` of the longest
    pack, and cut by the receiver. `inputs` are those of each micro-batch of the step.
    """

    def __init__(self, model: VLM, tokens: int, autocast: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.inputs = model, list[Inputs]()
        self.tokens, self._autocast = tokens, autocast

    def forward(self, *received: Tensor, number: Tensor) -> Tensor:
        """Compute micro-batch `number` [1]: activations `[tokens, width]`, at last losses [T]."""
        inputs = self.inputs[int(number)]
        x = received[0][: len(inputs.ids)] if received else None
        with self._autocast():
            out: Tensor = self.model(inputs, x)
        if self.model.last:
            return out
        return functional.pad(out, (0, 0, 0, self.tokens - len(out)))


class Pipeline:
    """Model whose layers are divided over the ranks along "pp" of the mesh, the stages.

    Other stages' parts are taken out of the model, before its optimizer is made. Batches have at
    most `tokens` tokens. `formula` counts the FLOPs of the whole model.
    """

    def __init__(
        self, model: VLM, ranks: Ranks, *, tokens: int, autocast: Callable[[], Any]
    ) -> None:
        assert ranks.mesh is not None
        mesh = ranks.mesh["pp"]
        self.formula = Formula(model)
        keep(model, mesh.get_local_rank(), mesh.size())
        self._module, self._mesh, self._device = Stage(model, tokens, autocast), mesh, ranks.device
        self._scale, self._count = 1.0, 0
        self._schedule: Schedule1F1B | ScheduleGPipe

    def learn(self, batches: Sequence[Inputs], scale: float) -> list[Tensor]:
        """Add the gradients of micro-batches, the same on every rank; `scale` multiplies the loss.

        Return the losses by token [T] of each, without a graph; zeros on all ranks but the last.
        """
        self._scale = scale
        return self._run(batches, "step")

    def evaluate(self, inputs: Inputs) -> Tensor:
        """Return the losses by token [T] of a batch, zeros on all ranks but the last."""
        return self._run([inputs], "eval")[0]

    def _run(self, batches: Sequence[Inputs], method: str) -> list[Tensor]:
        self._module.inputs = list(batches)
        numbers = torch.arange(len(batches))
        if len(batches) != self._count:
            self._schedule, self._count = self._make_schedule(len(batches)), len(batches)
        losses = getattr(self._schedule, method)(number=numbers, target=numbers)
        lengths = [len(inputs.ids) for inputs in batches]
        if losses is None:
            losses = torch.zeros(sum(lengths), device=self._device)
        return list(torch.split(losses.detach(), lengths))

    def _make_schedule(self, count: int) -> Schedule1F1B | ScheduleGPipe:
        """Return the schedule of so many micro-batches: 1F1B needs as many as there are stages."""
        model, number, stages = self._module.model, self._mesh.get_local_rank(), self._mesh.size()
        shape, dtype = (self._module.tokens, model.config.width), next(model.parameters()).dtype
        passed = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        stage = PipelineStage(
            self._module,
            number,
            stages,
            self._device,
            input_args=passed if number else (),
            output_args=passed,
            group=self._mesh.get_group(),
        )
        kind = Schedule1F1B if count >= stages else ScheduleGPipe
        return kind(stage, count, loss_fn=self._loss, scale_grads=False)

    def _loss(self, losses: Tensor, number: Tensor) -> Tensor:
        return losses.sum() * self._scale


def keep(model: VLM, number: int, stages: int) -> None:
    """Take out of a model what other stages have, in place; names of parameters stay.

    The first stage has encoder, projector and embedding. The others have the blocks between them,
    and the last one norm and head.
    """
    blocks, last = model.language.blocks, number == stages - 1
    if len(blocks) < stages - 1:
        raise ValueError(
            f"--parallel pipeline: {len(blocks)} layers do not fill {stages} ranks, of which the "
            f"first has the encoder; start {len(blocks) + 1} or fewer"
        )
    bounds = [stage * len(blocks) // (stages - 1) for stage in range(stages)]
    own = range(bounds[number - 1], bounds[number]) if number else range(0)
    for block in set(range(len(blocks))) - set(own):
        blocks[block] = Elsewhere()
    absent = [] if number == 0 else ["vision", "projector", "embedding"]
    for name in absent if last else [*absent, "language.norm", "head"]:
        model.set_submodule(name, Elsewhere())
    model.last = last
