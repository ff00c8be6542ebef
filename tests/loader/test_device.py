"""Copying batches to a device: their layout, and buffers that are not reused too early."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from datapipe.decode.batched import normalize_batch
from datapipe.errors import PlanError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.device.prefetcher import DevicePrefetcher

MEAN_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

on_each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def pixels(rows: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(0, 256, (rows, 3, 8, 8), dtype=torch.uint8, generator=generator)


def carry(feeder: DevicePrefetcher, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
    return feeder.receive(feeder.send(batch, **options))


class SlowLane:
    """A lane on the CPU whose copies are through only once `finish` is called."""

    def __init__(self) -> None:
        self.passed = 0
        self.marks = 0

    def section(self) -> Any:
        return nullcontext()

    def carry(self, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
        return tensor.clone(), tensor

    def mark(self) -> Any:
        self.marks += 1
        number, lane = self.marks, self

        class Mark:
            def query(self) -> bool:
                return number <= lane.passed

        return Mark()

    def hand_over(self, mark: Any, tensors: Any) -> None:
        pass

    def finish(self) -> None:
        self.passed = self.marks


@on_each_device
def test_numbers_are_laid_out_as_asked(device: str) -> None:
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD, dtype=torch.bfloat16, channels_last=True)
    got = carry(feeder, {"pixel_values": pixels()})["pixel_values"]
    assert got.dtype == torch.bfloat16
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got.cpu(), normalize_batch(pixels(), MEAN_STD, torch.bfloat16))
    kept = carry(DevicePrefetcher(device, channels_last=True), {"pixel_values": pixels().float()})
    assert kept["pixel_values"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(kept["pixel_values"].cpu(), pixels().float())


def ahead(feeder: DevicePrefetcher, batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Batches on the device, each of them sent before the one before it is given out."""
    sent: deque[Any] = deque()
    for batch in batches:
        sent.append(feeder.send(batch))
        del batch
        if len(sent) == 2:
            yield feeder.receive(sent.popleft())
    yield from map(feeder.receive, sent)


def test_memory_is_not_lent_again_before_it_has_been_copied() -> None:
    pool, lane = BufferPool(keep=2), SlowLane()
    feeder = DevicePrefetcher("cpu")
    feeder._lane = lane
    host = pool.allocate((4, 3, 8, 8), torch.uint8).fill_(7)
    address = host.data_ptr()
    sent = feeder.send({"pixel_values": host})
    del host
    gc.collect()
    feeder.receive(sent)
    del sent
    gc.collect()
    assert pool.idle == 0
    assert pool.allocate((4, 3, 8, 8), torch.uint8).data_ptr() != address
    lane.finish()
    feeder.receive(feeder.send({}))
    gc.collect()
    assert pool.idle == 2


def test_memory_of_a_batch_that_was_refused_stays_until_it_is_copied() -> None:
    pool, lane = BufferPool(keep=1), SlowLane()
    feeder = DevicePrefetcher("cpu", mean_std=MEAN_STD)
    feeder._lane = lane
    with pytest.raises(PlanError, match=r"torch.float32 already"):
        feeder.send({"pixel_values": pool.allocate((1, 3, 8, 8), torch.float32)})
    gc.collect()
    assert pool.idle == 0
    lane.finish()
    feeder.send({})
    gc.collect()
    assert pool.idle == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "meta"}, "sent to 'cpu' or 'cuda'"),
        ({"device": "gpu"}, "device 'gpu' is not known"),
        ({"device": "cuda:1000"}, "CUDA device"),
        ({"device": "cpu", "dtype": torch.float64}, "float64 is not one of"),
        ({"device": "cpu", "dtype": torch.uint8, "mean_std": MEAN_STD}, "do not fit"),
        ({"device": "cpu", "mean_std": (0.5, 0.5)}, "three values each"),
    ],
)
def test_impossible_options_are_refused_with_a_reason(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        DevicePrefetcher(**options)


@pytest.mark.gpu
def test_copies_wait_neither_for_the_consumer_nor_it_for_the_host() -> None:
    feeder = DevicePrefetcher("cuda", mean_std=MEAN_STD)
    batches = [{"pixel_values": pixels(number + 1)} for number in range(6)]
    sums = []
    for batch in ahead(feeder, (dict(batch) for batch in batches)):
        torch.cuda._sleep(20_000_000)  # cycles: the consumer is some ten milliseconds behind
        sums.append(batch["pixel_values"].double().sum())
        del batch  # whose memory must not be lent again before it was added up
    for batch, total in zip(batches, sums, strict=True):
        expected = normalize_batch(batch["pixel_values"], MEAN_STD, torch.float32)
        assert total.item() == pytest.approx(expected.double().sum().item(), rel=1e-9)


@pytest.mark.gpu
def test_page_locked_memory_may_be_dropped_before_it_has_been_copied() -> None:
    feeder = DevicePrefetcher("cuda")
    received = []
    for number in range(8):
        host = torch.full((32, 3, 336, 336), number, dtype=torch.uint8).pin_memory()
        received.append(carry(feeder, {"pixel_values": host})["pixel_values"])
        del host
    assert [int(values.amin()) for values in received] == list(range(8))
    assert [int(values.amax()) for values in received] == list(range(8))


@pytest.mark.gpu
def test_tensors_made_on_the_device_are_carried_on_in_order() -> None:
    feeder = DevicePrefetcher("cuda", mean_std=MEAN_STD)
    torch.cuda._sleep(20_000_000)
    made = pixels().cuda().add_(1).sub_(1)
    got = carry(feeder, {"pixel_values": made})["pixel_values"]
    assert torch.equal(got.cpu(), normalize_batch(pixels(), MEAN_STD, torch.float32))
