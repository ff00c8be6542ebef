"""FLOPs of a step from the model's own layers, and the share of the device's peak that they are.

Conventions: a product of `[m, k]` and `[k, n]` has `2 m k n` FLOPs; norms, activations and the
optimizer count nothing. A causal token attends to those up to itself, so half of the scores count.
Padding counts where the model computes it. The backward pass of a product has one product for the
gradient of its input and one for that of its weights, each where it is needed. What is computed a
second time (recomputed blocks, scores inside of Flash Attention, logits in parts) counts for
`hfu`, not for `mfu`, as in PaLM (arXiv 2204.02311, appendix B).
"""

import logging
from typing import Any, NamedTuple

import torch
from torch import nn

from datapipe.monitor.peaks import cpu_peaks, gpu_peaks
from examples.vlm.model import vlm as models
from examples.vlm.model.inputs import Inputs
from examples.vlm.model.layers import Transformer
from examples.vlm.model.vlm import VLM

logger = logging.getLogger(__name__)


class Rate(NamedTuple):
    """FLOPs for each row of an input, and for each pair of rows in attention."""

    row: float
    pair: float


class Sizes(NamedTuple):
    """Sizes of one batch or the sum of several: all that its FLOPs depend on.

    Tokens and patches include padding; squares are sums of the squared lengths of segments;
    `token_parts` are the tokens of batches whose logits are made in parts.
    """

    tokens: int
    patches: int
    token_squares: int
    patch_squares: int
    token_parts: int = 0


class Flops(NamedTuple):
    """FLOPs of a step: of the model, forward and backward, and with what is computed twice."""

    total: float
    computed: float


class Formula:
    """FLOPs of a model by the sizes of a batch, with what learns and is recomputed as it is.

    `whole` counts the scores that causal attention hides too, as `FlopCounterMode` does.
    """

    def __init__(self, model: VLM, *, whole: bool = False) -> None:
        self.whole = whole
        vision, projector = model.vision, model.projector
        images = learns(vision)
        # The encoder's input is data; other stages pass gradients on where one before them learns.
        embed = _matrices(vision.embed, into=False)
        encoder = _transformer(vision.transformer, model.kernel, into=learns(vision.embed))
        first = _matrices(projector.first, into=images)
        second = _matrices(projector.second, into=images or learns(projector.first))
        into = images or learns(projector) or learns(model.embedding)
        decoder = _transformer(model.language, model.kernel, into=into)
        head = _matrices(model.head, into=into or learns(model.language))
        # For each patch and each token: of the model, and computed again.
        patch = embed + encoder[0].row + (first + second) / projector.merged
        self.model = Rate(patch, encoder[0].pair), Rate(decoder[0].row + head, decoder[0].pair)
        self.again = encoder[1], decoder[1]
        self.head = _weights(model.head)
        self.rows = models.CHUNK // model.head.out_features

    def of(self, sizes: Sizes) -> Flops:
        seen = float(sizes.token_squares)
        if not self.whole:
            seen = (seen + sizes.tokens) / 2
        model, again = (
            patch.row * sizes.patches
            + patch.pair * sizes.patch_squares
            + token.row * sizes.tokens
            + token.pair * seen
            for patch, token in (self.model, self.again)
        )
        return Flops(model, model + again + 2 * self.head * sizes.token_parts)


def learns(module: nn.Module) -> bool:
    """Return whether some parameter of the module gets a gradient."""
    return any(parameter.requires_grad for parameter in module.parameters())


def linears(module: nn.Module) -> list[nn.Linear]:
    """Return the matrices of a module, adapters included, in the order in which they run."""
    return [each for each in module.modules() if isinstance(each, nn.Linear)]


def _weights(module: nn.Module) -> int:
    return sum(linear.weight.numel() for linear in linears(module))


def _matrices(module: nn.Module, *, into: bool) -> float:
    """FLOPs a row, forward and backward; `into`: the module's input needs a gradient."""
    total = 0
    for linear in linears(module):
        learnt = linear.weight.requires_grad
        total += linear.weight.numel() * 2 * (1 + learnt + into)
        into = into or learnt
    return total


def _transformer(module: Transformer, kernel: Any, *, into: bool) -> tuple[Rate, Rate]:
    """Rates of a transformer: of the model, and of what is computed again."""
    row = pair = again_row = again_pair = 0.0
    again = {number: run for run in recomputed_runs(module) for number in run}
    for number, block in enumerate(blocks_of(module)):
        backward = into or learns(block)
        inside = into or learns(block.attention)
        scores = 4.0 * block.attention.out.in_features
        row += _matrices(block.attention, into=into) + _matrices(block.mlp, into=inside)
        pair += scores * (3 if inside else 1)
        if inside and kernel != "plain":
            again_pair += scores / 2  # Flash Attention makes queries x keys again
        if backward and number in again:
            again_row += 2 * _weights(block)
            again_pair += scores
            if number == again[number][-1]:
                # Checkpointing stops before the last product, which no backward pass looks at.
                again_row -= 2 * linears(block)[-1].weight.numel()
        into = backward
    return Rate(row, pair), Rate(again_row, again_pair)


def blocks_of(module: Transformer) -> list[Any]:
    """Return the blocks, without the type that `nn.ModuleList` gives them."""
    return list(module.blocks)


def recomputed_runs(module: Transformer) -> list[range]:
    """Return the runs of blocks of which the backward pass computes each again as a whole."""
    again = module.recompute
    if again.segments:  # `checkpoint_sequential` keeps the activations of the last run
        size = len(module.blocks) // again.segments
        return [range(size * run, size * (run + 1)) for run in range(again.segments - 1)]
    return [range(number, number + 1) for number in sorted(again.blocks)]


class Meter:
    """Sizes of all batches that a model has trained on since the meter was set to zero.

    `formula` counts the whole model, also where this rank has only a part of it.
    """

    def __init__(self, model: VLM, formula: Formula | None = None) -> None:
        self._hook = model.register_forward_pre_hook(self.see)
        self.formula = formula or Formula(model)
        self._device = next(model.parameters()).device
        self.zero()

    def zero(self) -> None:
        self._squares = torch.zeros(2, dtype=torch.int64, device=self._device)
        self._tokens = self._patches = self._parts = 0

    def see(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Note a batch before the model sees it; the sums of lengths stay on the device."""
        if not (module.training and torch.is_grad_enabled()):
            return
        inputs: Inputs = arguments[0]
        tokens = len(inputs.ids)
        self._tokens += tokens
        self._patches += len(inputs.patches.values)
        self._parts += tokens if tokens > 2 * self.formula.rows else 0
        bounds = (inputs.segments.bounds, inputs.patches.segments.bounds)
        self._squares += torch.stack([each.diff().long().square().sum() for each in bounds])

    def flops(self) -> Flops:
        """Return the FLOPs of these batches; waits for the device."""
        tokens, patches = self._squares.tolist()
        return self.formula.of(Sizes(self._tokens, self._patches, tokens, patches, self._parts))

    def close(self) -> None:
        self._hook.remove()


class Peak:
    """FLOPs a second of a device: given, of the monitor's table of GPUs, or measured on the CPU.

    `dtype` is that of matrix products, which `tf32` lets round float32 factors.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        tf32: bool = False,
        given: float | None = None,
    ) -> None:
        self._dtype = str(dtype).removeprefix("torch.")
        self._measures = given is None and device.type == "cpu"
        self._known, self._refused = given, False
        if self._measures:  # now, as the steps to come may be recorded
            cpu_peaks(torch.get_num_threads())
        if given is None and device.type == "cuda":
            peaks = gpu_peaks(torch.cuda.get_device_name(device), tf32=tf32)
            self._known = None if peaks is None else peaks.rate(self._dtype)

    def share(self, flops: float) -> float | None:
        """Return these FLOPs a second as a share of the peak; None if the peak is not known."""
        if self._measures:
            peaks = cpu_peaks(torch.get_num_threads(), reached={self._dtype: flops})
            self._known = max(flops, peaks.rate(self._dtype))
        if self._known is None or flops <= self._known:
            return self._known and flops / self._known
        if not self._refused:
            self._refused = True
            logger.warning(
                "steps make %.3g FLOP/s, more than the peak of %.3g, so no MFU is shown; give the "
                "peak of a device as --peak-flops",
                flops,
                self._known,
            )
        return None
