"""Processes that train the reference model on given packs and time every step.

A rank's compute is the CPU time of its thread, so a core that it shares with another rank, or with
another program, does not slow it down. Its wait begins with the last gradient that it computes
itself and ends with the last one of all ranks.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from datapipe.array_types import Float64, Int64
from datapipe.plan import Units
from examples.vlm.model.config import MODELS, ModelConfig
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.vlm import VLM

KERNEL = "split"  # the attention that is fastest on the CPU
VOCABULARY = 260  # bytes and special tokens, as `examples.vlm.train` has without a tokenizer
IMAGE = 3
_PATIENCE = 600.0  # seconds for all steps of a run


class Timed(NamedTuple):
    """Seconds of the steps of a run, float64 [steps, ranks], and of one exchange of all gradients.

    `wall` is from the common start of a step to the rank's end, `cpu` of the thread that trains,
    `wait` from its last own gradient to the last of all ranks.
    """

    wall: Float64
    cpu: Float64
    wait: Float64
    exchange: float


class Ranks:
    """Processes of one world size, each with one thread, which wait for work between runs."""

    def __init__(self, count: int, cores: Sequence[int] | None, model: str) -> None:
        self.count = count
        self._folder = tempfile.TemporaryDirectory()
        rendezvous = (Path(self._folder.name) / "rendezvous").as_uri()
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in range(count)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(
                target=_serve,
                args=(theirs, rank, count, cores[rank] if cores else None, rendezvous, model),
                daemon=True,
            )
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def train(self, units: Units) -> Timed:
        """Train one step on every `count` packs."""
        sizes = units.sizes
        assert sizes is not None
        packs = [(sizes.tokens[a:b], sizes.images[a:b]) for a, b in pairwise(units.offsets)]
        for rank, pipe in enumerate(self._pipes):
            pipe.send(packs[rank :: self.count])
        parts = []
        for pipe in self._pipes:
            if not pipe.poll(_PATIENCE):
                raise TimeoutError(f"{self.count} ranks made no run within {_PATIENCE:.0f} s")
            parts.append(pipe.recv())
        times = np.stack([steps for steps, _ in parts], axis=1)
        exchange = max(seconds for _, seconds in parts)
        return Timed(times[..., 0], times[..., 1], times[..., 2], exchange)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(30)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(
    pipe: Connection, rank: int, count: int, core: int | None, rendezvous: str, name: str
) -> None:
    """Train runs until the pipe is closed."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rendezvous, rank=rank, world_size=count)
    trainer = _Trainer(MODELS[name])
    while True:
        try:
            packs = pipe.recv()
        except EOFError:
            break
        steps = [trainer.step(*pack) for pack in packs]
        pipe.send((np.array(steps), trainer.exchange()))
    dist.destroy_process_group()


class _Trainer:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.model = VLM(config, VOCABULARY, IMAGE, KERNEL)
        self.reduced = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        # A lambda, since torch compares annotations with its classes, and here they are strings.
        self.reduced.register_comm_hook(self, lambda self, bucket: self.average(bucket))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.last_own = 0.0

    def step(self, tokens: Int64, images: Int64) -> tuple[float, float, float]:
        """Train on a pack; return wall time, CPU time and wait."""
        inputs = make_inputs(make_batch(tokens, images, self.config), self.config, KERNEL)
        dist.barrier()  # batches are made by other cores than those that train
        began, cpu = time.perf_counter(), time.thread_time()
        self.reduced(inputs).mean().backward()
        wait = time.perf_counter() - self.last_own
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began, time.thread_time() - cpu, wait

    def average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket of gradients as DDP does, and note when it was complete here."""
        self.last_own = time.perf_counter()
        assert dist.group.WORLD is not None
        return allreduce_hook(dist.group.WORLD, bucket)

    def exchange(self) -> float:
        """Return the least seconds of some exchanges of all gradients, begun together."""
        gradients = torch.zeros(sum(p.numel() for p in self.model.parameters()))
        seconds = []
        for _ in range(3):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(gradients)
            seconds.append(time.perf_counter() - began)
        return min(seconds)


def make_batch(tokens: Int64, images: Int64, config: ModelConfig) -> dict[str, Any]:
    """Return a pack as a loader yields it, with random texts and images."""
    vision, bounds = config.vision, np.concatenate([[0], np.cumsum(tokens)])
    ids = torch.randint(IMAGE + 1, VOCABULARY, (int(bounds[-1]),))
    for start, count in zip(bounds.tolist(), images.tolist(), strict=False):
        ids[start : start + count * vision.image_tokens] = IMAGE
    batch = {
        "input_ids": ids[None],
        "labels": ids[None],
        "position_ids": torch.cat([torch.arange(length) for length in tokens.tolist()])[None],
        "cu_seq_lens_q": torch.from_numpy(bounds.astype(np.int32)),
        "max_length_q": int(tokens.max()),
    }
    if images.any():
        side = vision.image_size
        batch["pixel_values"] = torch.randn(1, 3, side, side).expand(int(images.sum()), -1, -1, -1)
    return batch
