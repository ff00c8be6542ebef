"""`torch.compile`: its modes, what they need, and the time that compiling takes."""

import os
import shutil
from importlib.util import find_spec
from typing import Literal, NamedTuple, Self

import torch
from torch._dynamo.utils import calculate_time_spent, counters

Mode = Literal["", "default", "reduce-overhead", "max-autotune"]


class Compiled(NamedTuple):
    """Work of the compiler in this process: seconds, and graphs that it made."""

    seconds: float
    graphs: int

    @classmethod
    def so_far(cls) -> Self:
        """Return the figures since the process began, as torch counts them."""
        return cls(calculate_time_spent()["total_wall_time"], counters["stats"]["unique_graphs"])

    def since(self, before: Self) -> Self:
        return self._replace(
            seconds=self.seconds - before.seconds, graphs=self.graphs - before.graphs
        )


def check_compiler(mode: Mode, device: torch.device, *, keeps_gradients: bool = False) -> None:
    """Refuse what cannot be compiled here, before there is a model; see `Techniques`."""
    if not mode:
        return
    if device.type == "cpu":
        if mode == "reduce-overhead":
            raise ValueError(
                "--compile reduce-overhead replays CUDA graphs, and on the CPU it would be the "
                "default; give --compile default"
            )
        compiler = os.environ.get("CXX", "g++")
        if not shutil.which(compiler):
            raise ValueError(
                f"--compile needs a C++ compiler on the CPU, and there is no {compiler}; install "
                "g++ (apt-get install g++), or name another in the variable CXX"
            )
        return
    if find_spec("triton") is None:
        raise ValueError(
            "--compile needs triton on a GPU, and it is not there; install it: pip install triton"
        )
    if mode != "default" and keeps_gradients:
        # They lie in the memory of the graphs, which the next batch's pass takes again
        # (https://github.com/pytorch/pytorch/issues/169545).
        raise ValueError(
            f"--compile {mode} replays CUDA graphs, which overwrite the gradients of a batch that "
            "are kept for the next one (by --accumulate, --accumulate-tokens, "
            "--accumulate-samples, --global-batch-size or --zero-gradients); give --compile default"
        )
