"""Continuations of prompts with images, several at a time, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import accumulate, islice, pairwise, takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from examples.vlm.data.accumulate import Batch
from examples.vlm.data.texts import Vocabulary
from examples.vlm.model.attention import Segments, prepare
from examples.vlm.model.inputs import IGNORE, make_inputs
from examples.vlm.model.kv_cache import KVCache
from examples.vlm.model.vlm import VLM

ENDS = ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>")
"""Tokens that end an answer, where a tokenizer has them."""


class Prompts(NamedTuple):
    """Embedded prompts behind each other, `[T, width]`, images included, and their lengths."""

    embedded: Tensor
    lengths: list[int]

    @classmethod
    def of_batch(cls, model: VLM, batch: Batch) -> Prompts:
        """Take the samples of a batch, padded or packed, up to their first label."""
        wanted, lengths = list[Tensor](), list[int]()
        labels = batch["labels"].flatten()
        for start, stop in _bounds(batch):
            learnt = (labels[start:stop] != IGNORE).nonzero()
            length = int(learnt[0]) if len(learnt) else stop - start
            wanted.append(torch.arange(start, start + length, device=labels.device))
            lengths.append(length)
        inputs = make_inputs(batch, model.config, model.kernel)
        with torch.no_grad(), _evaluating(model):
            return cls(model.embed(inputs)[torch.cat(wanted)], lengths)

    @classmethod
    def of_tokens(cls, model: VLM, texts: Sequence[Sequence[int]]) -> Prompts:
        """Take texts without images, as tokens."""
        device = model.embedding.weight.device
        ids = torch.tensor([token for text in texts for token in text], device=device)
        with torch.no_grad():
            return cls(model.embedding(ids), [len(text) for text in texts])


@torch.no_grad()
def generate(
    model: VLM,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    stop: Collection[int] = (),
    cached: bool = True,
    random: torch.Generator | None = None,
) -> list[list[int]]:
    """Continue prompts; return the new tokens of each, up to its first token of `stop`.

    Args:
        model: of this process alone; put into evaluation mode, and back.
        prompts: at least one, none empty.
        max_new_tokens: of each.
        temperature: of the softmax that tokens are drawn from; 0 takes the likeliest.
        top_k: likeliest tokens to draw from; 0 for all.
        cached: whether keys and values are kept, rather than all tokens computed for each new one.
    """
    _check(model, prompts, max_new_tokens, temperature, top_k)
    made: list[Tensor] = []
    ended = torch.zeros(len(prompts.lengths), dtype=torch.bool, device=prompts.embedded.device)
    stops = torch.tensor(sorted(stop), device=ended.device, dtype=torch.int64)
    rows = logits_of(model, prompts, max_new_tokens, cached=cached)
    with _evaluating(model), closing(rows) as steps:
        logits = next(steps)
        for number in range(max_new_tokens):
            made.append(_draw(logits, model.image_id, temperature, top_k, random))
            ended |= torch.isin(made[-1], stops)
            if ended.all() or number + 1 == max_new_tokens:
                break
            logits = steps.send(made[-1])
    texts = torch.stack(made, dim=1).tolist()
    return [_until(text, stop) for text in texts]


def logits_of(
    model: VLM, prompts: Prompts, room: int, *, cached: bool
) -> Generator[Tensor, Tensor, None]:
    """Yield the logits `[prompts, vocabulary]` of the next tokens, and be sent the tokens drawn.

    `room` is the most tokens that are added to each.
    """
    x, lengths = prompts.embedded, prompts.lengths
    cache = KVCache(lengths, max(lengths) + room, x.device)
    with cache.used_by(model.language) if cached else nullcontext():
        tokens = yield _last(model, x, lengths)
        rows = list(torch.split(x, lengths))
        while True:
            new = model.embedding(tokens).to(x.dtype)
            if cached:
                cache.next()
                single = Segments.of_rows(len(new), 1, causal=True, device=x.device)
                hidden = model.language(new, model.turns(cache.positions), single, "plain")
                tokens = yield model.head(hidden)
            else:
                rows = [torch.cat([row, one[None]]) for row, one in zip(rows, new, strict=True)]
                tokens = yield _last(model, torch.cat(rows), [len(row) for row in rows])


def _last(model: VLM, x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Logits behind the last token of each text, all of whose tokens are computed."""
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=x.device)
    positions = torch.cat([torch.arange(length, device=x.device) for length in lengths])
    # Uncompiled, as the cache is, flex would hold every score.
    kernel = "sdpa" if model.kernel == "flex" else model.kernel
    segments = prepare(Segments(bounds, max(lengths), 0, True), len(x), kernel)
    hidden = model.language(x, model.turns(positions), segments, segments.kernel)
    logits: Tensor = model.head(hidden[bounds[1:].long() - 1])
    return logits


def _draw(
    logits: Tensor, banned: int, temperature: float, top_k: int, random: torch.Generator | None
) -> Tensor:
    """Return a token for each row of logits; never that of an image, which has none to show."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits[:, banned] = -torch.inf
    if not temperature:
        return logits.argmax(-1)
    if top_k:
        least = logits.topk(min(top_k, logits.shape[1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=random)[:, 0]


def _bounds(batch: Batch) -> list[tuple[int, int]]:
    """First and last token of every sample of a batch, in the flattened row, without padding."""
    if "cu_seq_lens_q" in batch:
        bounds = batch["cu_seq_lens_q"].tolist()
        return list(pairwise(bounds))[: len(batch["key"])]
    rows, length = batch["input_ids"].shape
    ends = batch["attention_mask"].sum(1).tolist()
    return [(row * length, row * length + end) for row, end in zip(range(rows), ends, strict=True)]


def _check(
    model: VLM, prompts: Prompts, max_new_tokens: int, temperature: float, top_k: int
) -> None:
    if max_new_tokens < 1 or temperature < 0 or top_k < 0:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}, temperature={temperature}, top_k={top_k}: give 1, 0 "
            "and 0, or more"
        )
    if top_k and not temperature:
        raise ValueError(f"top_k={top_k} does nothing with temperature=0; give one above 0")
    if not min(prompts.lengths, default=0):
        raise ValueError("a prompt is empty; give each at least one token")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            "the model is divided over ranks (fsdp or tensor parallel), and texts are generated by "
            "one process: save a checkpoint and run python -m examples.vlm.generate on it"
        )


@contextmanager
def _evaluating(model: VLM) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _until(text: list[int], stop: Collection[int]) -> list[int]:
    return list(takewhile(lambda token: token not in stop, text))


def write_samples(
    model: VLM,
    batches: Iterable[Batch],
    vocabulary: Vocabulary,
    *,
    count: int,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    seed: int = 0,
) -> list[str]:
    """Return for each of the first samples its prompt, what was taught and what the model writes.

    Batches have `key` and `valid`. For the other options see `generate`.
    """
    tokenizer, device = vocabulary.tokenizer, model.embedding.weight.device
    known = tokenizer.get_vocab()
    stop = [known[name] for name in ENDS if name in known]
    random = torch.Generator(device).manual_seed(seed)
    lines: list[str] = []
    for batch in batches:
        here = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
        prompts = Prompts.of_batch(model, here)
        texts = generate(
            model,
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            stop=stop,
            random=random,
        )
        ids = batch["input_ids"].flatten().tolist()
        rows = zip(batch["key"], _bounds(batch), prompts.lengths, texts, strict=True)
        # Repeats at the end fill the last batch, without answers.
        for key, (start, end), length, text in islice(rows, int(batch["valid"].sum())):
            asked, wanted, written = (
                tokenizer.decode(part, skip_special_tokens=True).strip()
                for part in (ids[start : start + length], ids[start + length : end], text)
            )
            lines.append(
                f"{key}: {asked[-80:]!r}\n  taught: {wanted[:200]!r}\n  model:  {written!r}"
            )
        if len(lines) >= count:
            break
    return lines[:count]
