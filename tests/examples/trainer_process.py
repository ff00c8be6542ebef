"""Runs an example as its command does, notes the batches that it takes, and kills it at one.

    python trainer_process.py EXAMPLE.py ARGUMENT...

`BATCHES` is a file that gets the digest of each batch. Once `KILL_AT` batches were taken and the
next one is asked for, the process ends by SIGKILL.
"""

import hashlib
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch

import datapipe


def digest(batch: dict[str, Any]) -> str:
    """Fingerprint of the tensors of a batch."""
    seen = hashlib.sha256()
    for name, value in sorted(batch.items()):
        if isinstance(value, torch.Tensor):
            seen.update(name.encode())
            seen.update(value.numpy().tobytes())
    return seen.hexdigest()


def watch_loaders() -> None:
    begin = datapipe.Loader.__iter__
    kill_at = int(os.environ.get("KILL_AT", -1))

    def noted(loader: datapipe.Loader) -> Iterator[Any]:
        for number, batch in enumerate(begin(loader)):
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with open(os.environ["BATCHES"], "a") as file:
                file.write(digest(batch) + "\n")
            yield batch

    datapipe.Loader.__iter__ = noted  # type: ignore[assignment, method-assign]


def use_two_processes() -> None:
    """Tell Lightning what it finds out by itself where there are GPUs."""
    import pytorch_lightning as pl

    make = pl.Trainer
    given = {"accelerator": "cpu", "devices": 2, "strategy": "ddp_find_unused_parameters_true"}
    pl.Trainer = lambda **options: make(**options | given)  # type: ignore[assignment, misc]


if __name__ == "__main__":
    torch.set_num_threads(1)
    watch_loaders()
    sys.argv = sys.argv[1:]
    if "WORLD_SIZE" in os.environ and "lightning" in sys.argv[0]:
        use_two_processes()
    runpy.run_path(sys.argv[0], run_name="__main__")
