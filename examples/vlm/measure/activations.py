"""Bytes that autograd keeps of each part of the model until its backward pass.

Counted by the tensors that the operators save: a matrix its input, a norm its input and the
deviation of each row, SwiGLU three tensors of the hidden width and a product, attention queries,
keys, values, its result and a number per head. No kernel but `plain` keeps scores. Under autocast
a matrix keeps copies of its input and of its weights in half precision; the residual stream, norms
and the loss stay in float32.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn

from examples.vlm.measure.flops import blocks_of, learns, linears, recomputed_runs
from examples.vlm.model import vlm as models
from examples.vlm.model.layers import Transformer
from examples.vlm.model.vlm import VLM

FULL = 4  # bytes of a float32


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Facts of a step that the bytes depend on."""

    tokens: int  # rows of the language model, padding included
    patches: int  # rows of the encoder, padding included
    half: int  # bytes of inputs and outputs of products: 4 in float32, 2 under autocast
    fused_norm: bool  # norms are one kernel (on a GPU), which keeps no normalised rows
    copied: bool  # results of attention are concatenated from those of segments (`split`)
    images_copied: bool  # the same in the encoder
    views: bool  # attention keeps values as a part of one product with queries and keys
    casts: bool  # weights are kept in half precision too


class Stage(NamedTuple):
    """One part of the model, in bytes."""

    kept: int  # from its forward to its backward pass
    casts: int  # of weights to half precision, kept as long
    working: int  # the most in addition while its gradients are computed
    gradients: int


def stages(model: VLM, numbers: Numbers) -> list[Stage]:
    """Return the parts of a model in the order of the forward pass."""
    vision, projector = model.vision, model.projector
    images = learns(vision)
    parts = replace(numbers, copied=numbers.images_copied)
    into = images or learns(projector) or learns(model.embedding)
    embed, tokens = vision.embed, model.embedding
    # In float32 it keeps the patches themselves, which are counted with the batch.
    copied = embed.in_features if learns(embed) and numbers.half < FULL else 0
    made = numbers.patches * embed.out_features * numbers.half
    looked_up = numbers.tokens * tokens.embedding_dim * FULL * 2
    return [
        Stage(numbers.patches * copied * numbers.half, 0, made, size_of(embed)),
        *_transformer(vision.transformer, numbers.patches, parts, into=images),
        _projector(projector, numbers, into=images),
        # Nine bytes a token: the feature that it looks up, and whether it does.
        Stage(numbers.tokens * 9, 0, looked_up, size_of(tokens)),
        *_transformer(model.language, numbers.tokens, numbers, into=into),
        _loss(model.head, numbers),
    ]


def size_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def _transformer(module: Transformer, rows: int, numbers: Numbers, *, into: bool) -> list[Stage]:
    found, runs = [], recomputed_runs(module)
    again = {number: run for run in runs for number in run}
    width = blocks_of(module)[0].attention.out.in_features
    inside = Stage(0, 0, 0, 0)  # of the run of recomputed blocks that this block is in
    for number, block in enumerate(blocks_of(module)):
        into = into or learns(block)
        if not into:
            continue
        whole = _block(block, rows, numbers)
        if number not in again:
            found.append(whole)
            continue
        # A run keeps its input. While its backward pass lasts, it has what it computes again.
        sums = Stage(*map(sum, zip(inside, whole, strict=True)))
        inside = sums._replace(working=whole.working)
        if number == again[number][-1]:
            working = inside.working + inside.kept + inside.casts
            found.append(Stage(rows * width * FULL, 0, working, inside.gradients))
            inside = Stage(0, 0, 0, 0)
    kept = rows * _norm(module.norm, numbers) if into else 0
    if into and runs:
        kept += rows * blocks_of(module)[0].attention.size // 2 * FULL  # angles, for all blocks
    return [*found, Stage(kept, 0, 2 * rows * width * FULL, size_of(module.norm))]


def _block(block: Any, rows: int, numbers: Numbers) -> Stage:
    width, hidden = block.attention.out.in_features, block.mlp.down.in_features
    row = _norm(block.attention_norm, numbers) + _norm(block.mlp_norm, numbers)
    row += _attention(block.attention, numbers)
    row += _inputs([block.mlp.gate, block.mlp.up], numbers) + _inputs([block.mlp.down], numbers)
    row += 3 * hidden * numbers.half
    # Gradients of the residual stream and of both factors of the gated product, which is freed.
    working = rows * (2 * width * FULL + 2 * hidden * numbers.half)
    return Stage(rows * row, _casts(block, numbers), working, size_of(block))


def _norm(norm: Any, numbers: Numbers) -> int:
    """Bytes a row: its input, the deviation, and what the weight is multiplied with."""
    width: int = norm.normalized_shape[0]
    normalised = 0 if numbers.fused_norm or not norm.weight.requires_grad else width
    return FULL * (width + 1 + normalised)


def _attention(attention: Any, numbers: Numbers) -> int:
    readers = [each for name, each in attention.named_children() if name != "out"]
    width: int = attention.out.in_features
    both: int = sum(reader.out_features for reader in readers) - width  # of keys and of values
    size: int = attention.size
    saved = (2 * width + both) * numbers.half + width // size * FULL
    if len(readers) == 1 and numbers.views:
        saved += (width + both // 2) * numbers.half  # values are part of the one product
    saved += _inputs(readers, numbers)
    adapted = len(linears(attention.out)) > 1 and numbers.half < FULL
    if numbers.copied or adapted:
        saved += _inputs([attention.out], numbers)
    # Cosines and sines of half a head, for queries and for keys.
    return saved + 2 * size * FULL


def _inputs(readers: list[Any], numbers: Numbers) -> int:
    """Bytes a row of what matrices keep that read the same input."""
    learnt = [each for reader in readers for each in linears(reader) if each.weight.requires_grad]
    wide = [each for each in learnt if each.in_features == readers[0].in_features]
    narrow = sum(each.in_features for each in learnt if each not in wide)  # inside of adapters
    if not wide:
        return 0
    width: int = readers[0].in_features
    # Autocast makes a copy for each matrix that reads it; in float32 they share it.
    copies = len(wide) if numbers.half < FULL else 1
    return (copies * width + narrow) * numbers.half


def _casts(module: nn.Module, numbers: Numbers) -> int:
    weights = sum(each.weight.numel() for each in linears(module))
    return numbers.half * weights if numbers.casts else 0


def _projector(projector: Any, numbers: Numbers, *, into: bool) -> Stage:
    rows = numbers.patches // projector.merged
    first, second = projector.first, projector.second
    row = _inputs([first], numbers) + _inputs([second], numbers) + second.in_features * numbers.half
    working = rows * (first.out_features * 3 + first.in_features * into) * numbers.half
    casts = _casts(projector if into else second, numbers)
    return Stage(rows * row, casts, working, size_of(projector))


def _loss(head: nn.Linear, numbers: Numbers) -> Stage:
    rows = max(1, models.CHUNK // head.out_features)
    row, width, gradients = head.out_features * FULL, head.in_features, size_of(head)
    casts = _casts(head, numbers)
    if numbers.tokens > 2 * rows:  # in parts
        summed = gradients if numbers.half == FULL else 0  # what a part adds to the others'
        working = 3 * rows * row + casts + summed
        return Stage(numbers.tokens * width * FULL, 0, working, gradients)
    kept = numbers.tokens * (learns(head) * width * numbers.half + row)
    # Gradients of logits are freed before that of the weights is computed.
    return Stage(kept, casts, max(0, 2 * numbers.tokens * row - gradients), gradients)
