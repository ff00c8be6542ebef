"""Tensors of the host to the device of a model."""

from typing import Any

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor of the host to a device, without waiting for it.

    From memory that is not page-locked, the host would wait for all that the device has to do.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def bring(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a batch with its tensors on a device, if the loader has not brought them there."""
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
