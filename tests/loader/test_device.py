"""Copying batches to a device: their layout, and buffers that are not reused too early."""

import gc
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from datapipe.decode.batched import normalize_batch
from datapipe.errors import PlanError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.device.prefetcher import DevicePrefetcher, HostLane

MEAN_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def pixels(rows=2):
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(0, 256, (rows, 3, 8, 8), dtype=torch.uint8, generator=generator)


def carry(feeder, batch, **options):
    return feeder.receive(feeder.send(batch, **options))


class SlowLane(HostLane):
    """A lane on the CPU whose copies are through only once `finish` is called."""

    def __init__(self):
        self.passed = 0
        self.marks = 0

    def carry(self, tensor):
        return tensor.clone(), tensor

    def mark(self):
        self.marks += 1
        number = self.marks
        return SimpleNamespace(query=lambda: number <= self.passed)

    def finish(self):
        self.passed = self.marks


class CountedLane(HostLane):
    """A lane on the CPU that joins small tensors, as on CUDA, and keeps what it is called with."""

    joins = True

    def __init__(self):
        self.carried: list[Tensor] = []
        self.handed_over: list[Tensor] = []

    def carry(self, tensor):
        self.carried.append(tensor)
        return tensor.clone(), tensor

    def hand_over(self, mark, tensors):
        self.handed_over += tensors


def feeder_of(lane, **options):
    feeder = DevicePrefetcher("cpu", **options)
    feeder.lane = lane
    return feeder


def batch_of_packs(tokens=24, rows=2):
    """The keys of a batch of packs, with different values in each."""
    lengths = torch.tensor([0, 5, tokens], dtype=torch.int32)
    return {
        "pixel_values": pixels(rows),
        "input_ids": torch.arange(tokens)[None],
        "labels": torch.arange(tokens)[None] + 1000,
        "position_ids": torch.arange(4 * tokens).view(4, 1, tokens) + 2000,
        "cu_seq_lens_q": lengths,
        "cu_seq_lens_k": lengths,
        "max_length_q": tokens - 5,
        "image_grid_thw": torch.tensor([[1, 4, 6], [1, 2, 3]]),
        "second_per_grid_ts": torch.tensor([0.5]),
        "image_geometry": torch.linspace(0, 1, 18, dtype=torch.float64).view(3, 6),
        "valid": torch.tensor([True, False, True]),
        "num_items_in_batch": torch.tensor(7),
        "nothing": torch.zeros(0, 3),
        "key": ["a", "b", "c"],
    }


def assert_same(got, expected):
    assert list(got) == list(expected)
    for name, value in expected.items():
        if isinstance(value, Tensor):
            assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape)
            assert got[name].stride() == value.stride()  # compiled models look at them
            assert torch.equal(got[name].cpu(), value)
        else:
            assert got[name] == value


@pytest.mark.parametrize("device", ["cpu", "joining", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batches_arrive_with_their_values_dtypes_and_shapes(device):
    """Also where small tensors cross together."""
    feeder = feeder_of(CountedLane()) if device == "joining" else DevicePrefetcher(device)
    for tokens in (24, 6, 1):
        assert_same(carry(feeder, batch_of_packs(tokens)), batch_of_packs(tokens))


def test_small_tensors_cross_in_one_copy_and_large_ones_alone():
    lane, batch = CountedLane(), batch_of_packs()
    feeder = feeder_of(lane, mean_std=MEAN_STD)
    batch["pixel_values"] = large = torch.zeros(8, 3, 224, 224, dtype=torch.uint8)
    got = carry(feeder, batch)
    *alone, buffer = lane.carried
    assert [id(tensor) for tensor in alone] == [id(large), id(batch["nothing"])]
    assert buffer.nbytes < 4096
    # Each storage is announced once to the stream that uses it.
    storages = [tensor.untyped_storage().data_ptr() for tensor in lane.handed_over]
    assert len(storages) == len(set(storages)) == 3
    for value in got.values():
        assert not isinstance(value, Tensor) or value.untyped_storage().data_ptr() in storages


def test_tensors_that_crossed_together_are_aligned_and_changed_alone():
    got = carry(feeder_of(CountedLane()), batch_of_packs())
    tensors = {name: value for name, value in got.items() if isinstance(value, Tensor)}
    assert all(value.data_ptr() % 64 == 0 for value in tensors.values())
    expected = {name: value.clone() for name, value in tensors.items()}
    for name, value in tensors.items():
        value.fill_(1)
        expected[name].fill_(1)
        assert all(torch.equal(tensors[other], expected[other]) for other in tensors), name


def test_a_change_of_one_tensor_does_not_stop_the_gradients_of_another():
    batch = {"labels": torch.tensor([0, 1]), "input_ids": torch.tensor([1, 1])}
    got = carry(feeder_of(CountedLane()), batch)
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, got["labels"])  # keeps the labels
    got["input_ids"].add_(1)
    assert torch.autograd.grad(loss, logits)[0].any()


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(4, 4).T[1:],  # not contiguous
        torch.ones(3, dtype=torch.bfloat16),  # NumPy has none
        torch.ones((1 << 18) + 1),  # over 1 MiB
    ],
)
def test_tensors_that_cannot_be_joined_cross_alone(value):
    lane = CountedLane()
    got = carry(feeder_of(lane), {"value": value, "other": torch.arange(3)})
    assert len(lane.carried) == 2
    assert lane.carried[0] is value
    assert torch.equal(got["value"], value)
    assert torch.equal(got["other"], torch.arange(3))


def test_batches_that_stay_on_the_host_are_not_copied():
    batch = batch_of_packs()
    got = carry(DevicePrefetcher("cpu"), dict(batch))
    assert all(got[name] is value for name, value in batch.items())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_numbers_are_laid_out_as_asked(device):
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD, dtype=torch.bfloat16, channels_last=True)
    got = carry(feeder, {"pixel_values": pixels()})["pixel_values"]
    assert got.dtype == torch.bfloat16
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got.cpu(), normalize_batch(pixels(), MEAN_STD, torch.bfloat16))
    kept = carry(DevicePrefetcher(device, channels_last=True), {"pixel_values": pixels().float()})
    assert kept["pixel_values"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(kept["pixel_values"].cpu(), pixels().float())


def ahead(feeder, batches):
    """Batches on the device, each of them sent before the one before it is given out."""
    sent: deque[Any] = deque()
    for batch in batches:
        sent.append(feeder.send(batch))
        del batch
        if len(sent) == 2:
            yield feeder.receive(sent.popleft())
    yield from map(feeder.receive, sent)


def test_memory_is_not_lent_again_before_it_has_been_copied():
    pool, lane = BufferPool(keep=2), SlowLane()
    feeder = feeder_of(lane)
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


def test_memory_of_a_batch_that_was_refused_stays_until_it_is_copied():
    pool, lane = BufferPool(keep=1), SlowLane()
    feeder = feeder_of(lane, mean_std=MEAN_STD)
    with pytest.raises(PlanError, match=r"torch.float32 already"):
        feeder.send({"pixel_values": pool.allocate((1, 3, 8, 8), torch.float32)})
    gc.collect()
    assert pool.idle == 0
    lane.finish()
    feeder.send({})
    gc.collect()
    assert pool.idle == 1


@pytest.mark.gpu
def test_copies_wait_neither_for_the_consumer_nor_it_for_the_host():
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
def test_page_locked_memory_may_be_dropped_before_it_has_been_copied():
    feeder = DevicePrefetcher("cuda")
    received = []
    for number in range(8):
        host = torch.full((32, 3, 336, 336), number, dtype=torch.uint8).pin_memory()
        received.append(carry(feeder, {"pixel_values": host})["pixel_values"])
        del host
    assert [int(values.amin()) for values in received] == list(range(8))
    assert [int(values.amax()) for values in received] == list(range(8))


@pytest.mark.gpu
def test_tensors_made_on_the_device_are_carried_on_in_order():
    feeder = DevicePrefetcher("cuda", mean_std=MEAN_STD)
    torch.cuda._sleep(20_000_000)
    made = pixels().cuda().add_(1).sub_(1)
    got = carry(feeder, {"pixel_values": made})["pixel_values"]
    assert torch.equal(got.cpu(), normalize_batch(pixels(), MEAN_STD, torch.float32))
