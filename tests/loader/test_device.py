from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import datapipe
from datapipe.decode.batched import normalize_batch
from datapipe.errors import PlanError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.device.prefetcher import DevicePrefetcher

MEAN_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

on_each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)

Make = Callable[..., datapipe.Loader]


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


# What comes out.


@on_each_device
def test_batches_on_the_device_have_the_bits_of_a_loader_that_normalises(
    make: Make, device: str
) -> None:
    spec = datapipe.ImageSpec(size=32, normalize="imagenet")
    expected = list(make(image=spec))
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD)
    count = 0
    for batch, other in zip((carry(feeder, b) for b in make()), expected, strict=True):
        assert list(batch) == list(other)
        assert batch["pixel_values"].device.type == device
        assert torch.equal(batch["pixel_values"].cpu(), other["pixel_values"])
        assert batch["valid"].device.type == device
        assert torch.equal(batch["valid"].cpu(), other["valid"])
        assert batch["key"] == other["key"]
        count += 1
    assert count == len(expected) > 5


def test_on_the_cpu_nothing_is_copied_that_is_not_changed(make: Make) -> None:
    for batch in make():
        carried = carry(DevicePrefetcher("cpu"), batch)
        assert list(carried) == list(batch)
        assert all(carried[name] is value for name, value in batch.items())


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


@on_each_device
def test_native_patches_are_normalised_channel_by_channel(device: str) -> None:
    patches = pixels(4).view(4, 3 * 64)
    got = carry(DevicePrefetcher(device, mean_std=MEAN_STD), {"pixel_values": patches})[
        "pixel_values"
    ]
    assert got.shape == (4, 192)
    assert torch.equal(
        got.cpu().view(4, 3, 8, 8), normalize_batch(pixels(4), MEAN_STD, torch.float32)
    )


@on_each_device
def test_rows_of_skipped_samples_are_zero_after_normalisation(device: str) -> None:
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD)
    blank = torch.tensor([False, True, False])
    whole = normalize_batch(pixels(3), MEAN_STD, torch.float32)
    got = carry(feeder, {"pixel_values": pixels(3)}, blank=blank)["pixel_values"].cpu()
    assert not got[1].any()
    assert torch.equal(got[[0, 2]], whole[[0, 2]])
    patches = carry(feeder, {"pixel_values": pixels(3).view(3, -1)}, blank=blank)["pixel_values"]
    assert torch.equal(patches.cpu(), got.view(3, -1))


@on_each_device
def test_padding_is_zero_after_normalisation(device: str) -> None:
    batch = {"pixel_values": pixels(2), "image_sizes": torch.tensor([[8, 8], [5, 3]])}
    got = carry(DevicePrefetcher(device, mean_std=MEAN_STD, padded=True), batch)[
        "pixel_values"
    ].cpu()
    whole = normalize_batch(pixels(2), MEAN_STD, torch.float32)
    assert torch.equal(got[0], whole[0])
    assert torch.equal(got[1, :, :5, :3], whole[1, :, :5, :3])
    assert not got[1, :, 5:].any()
    assert not got[1, :, :, 3:].any()
    # The sizes of originals, as tiles have them, say nothing about padding.
    plain = carry(DevicePrefetcher(device, mean_std=MEAN_STD), batch)["pixel_values"].cpu()
    assert torch.equal(plain, whole)


@on_each_device
def test_a_batch_taken_in_inference_mode_can_be_trained_on(device: str) -> None:
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD)
    with torch.inference_mode():
        got = carry(feeder, {"pixel_values": pixels()})["pixel_values"]
    assert not got.is_inference()


@on_each_device
def test_batches_without_images_and_empty_tensors_pass(device: str) -> None:
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD, channels_last=True)
    got = carry(feeder, {"text": ["a"], "labels": torch.empty(0, 4, dtype=torch.int64)})
    assert got["text"] == ["a"]
    assert got["labels"].shape == (0, 4)
    empty = carry(feeder, {"pixel_values": pixels(0)})["pixel_values"]
    assert empty.shape == (0, 3, 8, 8)
    assert empty.dtype == torch.float32


# Ahead.


def ahead(feeder: DevicePrefetcher, batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Batches on the device, each of them sent before the one before it is given out."""
    sent: deque[Any] = deque()
    for batch in batches:
        sent.append(feeder.send(batch))
        del batch
        if len(sent) == 2:
            yield feeder.receive(sent.popleft())
    yield from map(feeder.receive, sent)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each batch that is sent to a device."""
    sent: list[int] = []
    send = DevicePrefetcher.send

    def counted(self: DevicePrefetcher, *args: Any, **options: Any) -> Any:
        sent.append(1)
        return send(self, *args, **options)

    monkeypatch.setattr(DevicePrefetcher, "send", counted)
    return sent


@on_each_device
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_one_batch_is_on_its_way_while_another_is_used(
    make: Make, sends: list[int], device: str, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(device=device, workers=workers)
    iterator = iter(loader)
    ready = iterator.executor.ready

    def soon() -> bool:
        deadline = time.monotonic() + 60
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.01)
        return ready()

    monkeypatch.setattr(iterator.executor, "ready", soon)
    for number in range(4):
        next(iterator)
        assert len(sends) == number + 2
    loader.close()


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_error_of_the_next_batch_comes_after_the_batch_before_it(
    damaged: Path, sends: list[int], workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = datapipe.make_loader(
        damaged, batch_size=6, device="cpu", workers=workers, num_workers=1, shuffle=False
    )
    iterator = iter(loader)
    monkeypatch.setattr(iterator.executor, "ready", lambda: True)
    assert next(iterator)["key"] == [f"{number:09}" for number in range(6)]
    assert sends == [1]
    with pytest.raises(datapipe.DecodeError, match="sample 000000006"):
        next(iterator)


def test_a_batch_is_not_held_back_for_one_that_is_not_ready(make: Make, sends: list[int]) -> None:
    for number, _ in enumerate(make(device="cpu", num_workers=0)):
        assert len(sends) == number + 1
    assert sends


# Memory.


def test_a_batch_belongs_to_whoever_received_it() -> None:
    feeder = DevicePrefetcher("cpu", mean_std=MEAN_STD)
    batch = next(ahead(feeder, ({"pixel_values": pixels()} for _ in range(3))))
    seen = weakref.ref(batch["pixel_values"])
    del batch
    gc.collect()
    assert seen() is None


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


def test_memory_stays_until_it_is_copied_also_where_a_batch_was_refused() -> None:
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


# What is refused.


def test_values_that_were_normalised_already_are_refused() -> None:
    feeder = DevicePrefetcher("cpu", mean_std=MEAN_STD)
    with pytest.raises(PlanError, match=r"torch.float32 already"):
        feeder.send({"pixel_values": pixels().float()})
    assert carry(feeder, {"pixel_values": pixels()})["pixel_values"].dtype == torch.float32


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_said_plainly() -> None:
    with pytest.raises(PlanError, match="finds no CUDA device"):
        DevicePrefetcher("cuda")


# On CUDA alone.


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
