"""Communication hooks of DDP: what gradients become on their way between ranks."""

import logging
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future

Hook = Literal["none", "fp16", "bf16", "powersgd"]

logger = logging.getLogger(__name__)


class Norms:
    """Norm of this rank's own gradients, summed over the batches of a step, before the exchange."""

    def __init__(self) -> None:
        self._squares: list[Tensor] = []

    def note(self, gradients: Tensor) -> None:
        """Note some of the gradients, before they are exchanged."""
        self._squares.append(gradients.detach().float().square().sum())

    def take(self) -> Tensor | None:
        """Return the norm of all that was noted since it was last taken, on the device."""
        if not self._squares:
            return None
        norm = torch.stack(self._squares).sum().sqrt()
        self._squares.clear()
        return norm


def make_hook(
    kind: Hook, norms: Norms, *, powersgd_rank: int, powersgd_start: int
) -> Callable[[Any, Any], Future[Tensor]]:
    """Make a hook for `DistributedDataParallel.register_comm_hook(None, hook)`.

    "fp16" and "bf16" halve the bytes; "powersgd" sends factors of a low rank (arXiv 1905.13727)
    from step `powersgd_start` on, 2 or more: DDP rearranges its buckets after the first. DDP
    refuses torch's own bf16 hook on a CPU by its name, for lack of NCCL 2.10; gloo adds bfloat16
    itself, so this hook works on both.
    """
    state: Any = None
    send: Callable[[Any, Any], Future[Tensor]]
    if kind == "powersgd":
        # It logs every setting and every step it counts.
        logging.getLogger(powerSGD_hook.__name__).setLevel(logging.WARNING)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=powersgd_rank, start_powerSGD_iter=powersgd_start
        )
        send = powerSGD_hook.powerSGD_hook
    else:
        send = {
            "none": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
        }[kind]

    def hook(_: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        norms.note(bucket.buffer())
        return send(state, bucket)

    return hook
