"""Tensors whose values Python asks for; on a GPU, each makes the host wait for the device."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

READS = [getattr(torch.Tensor, n) for n in ("item", "tolist", "__float__", "__int__", "__bool__")]


class Reads(TorchFunctionMode):
    """Context that notes every tensor that this thread reads."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self.tensors.append(args[0])
        return func(*args, **(kwargs or {}))
