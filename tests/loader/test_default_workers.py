"""Number of workers that `make_loader` takes by default, with a GPU and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from datapipe import ImageSpec, Loader
from datapipe.loader import image_path
from datapipe.loader.device.prefetcher import DevicePrefetcher

Make = Callable[..., Loader]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend a number of CPUs, and that "cuda" is there; batches stay on the CPU."""

    def prefetcher(device: torch.device, **options: Any) -> DevicePrefetcher:
        return DevicePrefetcher("cpu", **options)

    def pretend(cpus: int) -> None:
        monkeypatch.setattr(image_path, "default_workers", lambda: cpus)
        monkeypatch.setattr(image_path, "resolve_device", torch.device)
        monkeypatch.setattr(image_path, "DevicePrefetcher", prefetcher)

    return pretend


@pytest.mark.parametrize(
    ("cpus", "options", "workers"),
    [
        (16, {"device": "cuda"}, 8),
        (16, {"device": "cuda", "image": None}, 8),
        (16, {"device": "cuda", "num_workers": "auto"}, 8),  # nothing was tuned
        (16, {"device": "cuda", "num_workers": 12}, 12),
        (16, {"device": "cuda", "workers": "processes"}, 16),
        (4, {"device": "cuda"}, 4),
        (16, {"device": "cpu"}, 16),
        (16, {}, 16),
    ],
)
def test_at_most_eight_threads_decode_for_a_gpu_by_default(
    machine: Callable[[int], None], make: Make, cpus: int, options: dict[str, Any], workers: int
) -> None:
    machine(cpus)
    assert make(**{"decoder": "cpu", "num_workers": None} | options).options.num_workers == workers


def test_dali_takes_all_cpus_by_default(machine: Callable[[int], None], make: Make) -> None:
    pytest.importorskip("nvidia.dali")
    machine(16)
    image = ImageSpec(size=64)
    assert make(device="cuda", num_workers=None, image=image).options.num_workers == 16
    # DALI has no resizing of this kind, so the CPU kernels decode.
    native = ImageSpec(resize="native")
    assert make(device="cuda", num_workers=None, image=native).options.num_workers == 8
