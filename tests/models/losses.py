"""Losses of batches, beside those of their samples one by one."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch

Batches = Iterable[dict[str, Any]]
META = ("key", "valid", "num_items_in_batch")


def loss_of(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Return the loss that a model of Hugging Face has on a batch with `META`."""
    inputs = {name: value for name, value in batch.items() if name not in ("key", "valid")}
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    loss: torch.Tensor = model(**inputs).loss
    return loss


def fails(name: str) -> list[pytest.MarkDecorator]:
    """Return the mark of a model that transformers 5.24.0 cannot run.

    The whole model of Llama 4 asks for `image_outputs`, which the result of its text model lacks.
    """
    return [pytest.mark.xfail(raises=AttributeError, strict=True)] * (name == "llama4")


@torch.no_grad()
def losses_alone(model: Any, batches: Batches) -> dict[str, float]:
    """Return the summed loss of each sample by its key, from batches of one sample."""
    return {
        batch["key"][0]: float(loss_of(model, batch)) * batch["num_items_in_batch"]
        for batch in batches
    }


def assert_losses(model: Any, batches: Batches, alone: dict[str, float], samples: int) -> None:
    """Compare losses of batches with the means over the labels of their samples one by one."""
    seen = 0
    for batch in batches:
        valid = [key for key, counts in zip(batch["key"], batch["valid"], strict=True) if counts]
        mean = sum(alone[key] for key in valid) / batch["num_items_in_batch"]
        with torch.no_grad():
            loss = float(loss_of(model, batch))
        assert loss == pytest.approx(mean, rel=1e-5)  # models compute it in float32
        seen += len(valid)
    assert seen == samples
