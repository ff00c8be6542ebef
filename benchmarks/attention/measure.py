"""One attention layer, forward and backward: its inputs, its time and the memory that it takes."""

import argparse
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, product
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.common import Absent, Contestant, Result, Run, Spread, compete
from examples.vlm.measure.memory import peak_of
from examples.vlm.model.attention import Segments, attend, prepare, why_not

T = TypeVar("T")

PADDED, PACKED = "padded", "packed"

_STEADY = 0.05  # seconds that are timed at a time, at least
_MOST = 50  # steps that are timed at a time


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Shape of an attention layer, without the projections around it.

    Attributes:
        heads, kv_heads, size: heads of queries, of keys and values, and values in each.
        memory: most bytes of scores that are tried on the CPU, where running out ends the process.
        dropout: share of the weights set to zero.
    """

    heads: int
    kv_heads: int
    size: int
    dtype: torch.dtype
    device: torch.device
    memory: float
    causal: bool = True
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tokens in a row; `real` are those without padding.

    `segments` are not prepared for a kernel. `inputs` are queries, keys, values and gradients of
    the output: `[total, heads, size]` each.
    """

    segments: Segments
    real: int
    inputs: list[Tensor]

    @property
    def total(self) -> int:
        return len(self.inputs[0])

    def scores(self, kernel: str) -> int:
        """Scores of a head that a kernel holds in memory, or a mask for them."""
        if self.segments.same:
            return self.total * self.segments.same if kernel == "plain" else 0
        return self.total**2 if kernel in ("plain", "sdpa") else 0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of a kernel besides the time of its steps.

    `peak` is the most bytes above the inputs, mask and gradients included; `mask` the seconds to
    make the mask, which all layers of a batch share.
    """

    peak: int
    mask: float


@dataclass(kw_only=True)
class Measured:
    """A setting at a length: that of each sequence, or of the longest.

    `tokens` of a batch are without padding. Results of the packed setting are named "KERNEL padded"
    and "KERNEL packed".
    """

    length: int
    tokens: int
    shape: str
    results: list[Result] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)

    def named(self, name: str) -> Result | None:
        return next((one for one in self.results if one.name == name and one.runs), None)

    def step(self, result: Result) -> Spread:
        """Seconds of a step."""
        return Spread.of([self.tokens / run.rate for run in result.runs])

    def peak(self, result: Result) -> float:
        """Megabytes."""
        return self.costs[result.name].peak / 1e6


def uniform(layer: Layer, rows: int, length: int) -> Batch:
    segments = Segments.of_rows(rows, length, causal=layer.causal, device=layer.device)
    return Batch(segments=segments, real=rows * length, inputs=make_inputs(layer, rows * length))


def padded(layer: Layer, lengths: Sequence[int]) -> Batch:
    """Put each sample into a row as long as the longest."""
    return replace(uniform(layer, len(lengths), max(lengths)), real=sum(lengths))


def packed(layer: Layer, lengths: Sequence[int]) -> Batch:
    """All samples behind each other."""
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=layer.device)
    segments = Segments(bounds, max(lengths), 0, layer.causal)
    return Batch(segments=segments, real=sum(lengths), inputs=make_inputs(layer, sum(lengths)))


def make_inputs(layer: Layer, tokens: int) -> list[Tensor]:
    """Return queries, keys and values that want gradients, and the gradients of the output."""
    made = torch.Generator(layer.device).manual_seed(tokens)
    heads = (layer.heads, layer.kv_heads, layer.kv_heads, layer.heads)
    how: dict[str, Any] = {"generator": made, "device": layer.device, "dtype": layer.dtype}
    inputs = [torch.randn((tokens, number, layer.size), **how) for number in heads]
    return [*(x.requires_grad_() for x in inputs[:3]), inputs[3]]


def draw_lengths(total: int, longest: int) -> list[int]:
    """Lengths of samples, `total` tokens together: two captions for each conversation.

    Both are log-normal, about 150 tokens with those of an image and about 700, as in mixtures of
    captions and visual instructions; `longest` cuts them. The same every time.
    """
    drawn = random.Random(0)
    lengths: list[int] = []
    while (left := total - sum(lengths)) > 0:
        middle, spread = (700, 0.8) if len(lengths) % 3 == 0 else (150, 0.4)
        length = round(drawn.lognormvariate(math.log(middle), spread))
        lengths.append(min(max(length, 16), longest, left))
    return lengths


def contestant(
    kernel: str, layer: Layer, batch: Batch, keep: Callable[[Cost], None]
) -> Callable[[], Run]:
    """Return the function of a round: some steps of a kernel, timed together.

    `keep` is given the kernel's other costs. Absent is raised if it cannot run, or not with so
    little memory.
    """
    if reason := why_not(kernel, layer.device.type, layer.dtype, layer.dropout > 0):
        raise Absent(reason)
    if layer.device.type == "cpu":
        _refuse_too_much(kernel, layer, batch)
    *leaves, upstream = batch.inputs

    def steps(segments: Segments, number: int) -> None:
        for _ in range(number):
            out = attend(leaves[0], leaves[1], leaves[2], segments, kernel, layer.dropout)
            torch.autograd.grad(out, leaves, upstream)

    def once() -> None:
        steps(prepare(batch.segments, batch.total, kernel), 1)

    def measure() -> tuple[Segments, int]:
        once()  # compiles, and fills caches
        peak = peak_of(once, layer.device)
        made: list[Segments] = []
        mask = seconds(
            lambda: made.append(prepare(batch.segments, batch.total, kernel)), layer.device
        )
        keep(Cost(peak=peak, mask=mask))
        single = seconds(lambda: steps(made[0], 1), layer.device)
        return made[0], min(_MOST, math.ceil(_STEADY / single))

    segments, number = or_absent(measure)

    def run() -> Run:
        taken = or_absent(lambda: seconds(lambda: steps(segments, number), layer.device))
        return Run(samples=batch.real * number, seconds=taken)

    return run


def or_absent(work: Callable[[], T]) -> T:
    """Call `work`; raise Absent if memory runs out or the kernel fails, so that others continue."""
    try:
        return work()
    except torch.OutOfMemoryError as error:
        reason = "out of memory: " + str(error).split(". ")[1 if "Tried" in str(error) else 0]
    except RuntimeError as error:
        reason = f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"
    # Not inside the handlers: the error holds the frames, and they the tensors.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise Absent(reason)


def _refuse_too_much(kernel: str, layer: Layer, batch: Batch) -> None:
    """Scores before and after the mask and the softmax, and gradients: 5 of them at a time."""
    heads, copies = (layer.heads, 5) if kernel == "plain" else (1, 3)
    wanted = copies * heads * batch.scores(kernel) * max(4, layer.dtype.itemsize)
    if wanted > layer.memory:
        allowed = f"--memory allows {layer.memory / 1e9:g}"
        raise Absent(f"its scores would take about {wanted / 1e9:.2g} GB, and {allowed}")


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Measure how long the device is busy with `work`, from its first kernel to its last."""
    if device.type == "cpu":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    began.record()
    work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def measure_rows(layer: Layer, length: int, options: argparse.Namespace) -> Measured:
    """Each kernel over rows of `length` tokens, `--tokens` together."""
    count = max(1, options.tokens // length)
    batches = {"": uniform(layer, count, length)}
    return measure(layer, length, batches, f"{count} x {length:,}", options)


def measure_mixed(layer: Layer, length: int, options: argparse.Namespace) -> Measured:
    """Each kernel over the same samples, padded and packed."""
    lengths = draw_lengths(max(options.tokens, length), length)
    batches = {PADDED: padded(layer, lengths), PACKED: packed(layer, lengths)}
    shape = (
        f"{len(lengths)} samples of {min(lengths):,} to {max(lengths):,}: {sum(lengths):,} tokens "
        f"packed, {batches[PADDED].total:,} padded"
    )
    return measure(layer, length, batches, shape, options)


def measure(
    layer: Layer, length: int, batches: dict[str, Batch], shape: str, options: argparse.Namespace
) -> Measured:
    """Measure in turns what all kernels take for the same samples, in each form of a batch."""
    torch.compiler.reset()  # so that no number of tokens is one too many to compile for
    real = next(iter(batches.values())).real
    measured = Measured(length=length, tokens=real, shape=shape)
    contestants = []
    for kernel, (form, batch) in product(options.kernels, batches.items()):
        name = f"{kernel} {form}".strip()
        keep = partial(measured.costs.__setitem__, name)
        contestants.append(Contestant(name, partial(contestant, kernel, layer, batch, keep)))
    measured.results = compete(contestants, options.rounds)
    return measured
