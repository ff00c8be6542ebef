"""Memory that worker processes share, and what is sent through it."""

import os

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.loader.workers.ipc import dump_batch, load_batch, reduce_array
from datapipe.loader.workers.process_steps import RegionPool
from datapipe.loader.workers.shared_memory import Regions, SharedFile
from datapipe.workers.worker_handle import dump_factory

MIB = 1 << 20


def send(value, make=None):
    """A value, or what is made of lent tensors, as it comes out on the other side."""
    file = SharedFile(1)
    regions, pool = Regions(file, keep=1), RegionPool(file)
    region = regions.allocate()
    pool.start(region.number)
    content = dump_batch(make(pool) if make else value, pool.locate)
    return load_batch(content, regions.buffer(region.number, max(1, pool.used)))


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(
        [torch.uint8, torch.bool, torch.int64, torch.float32, torch.bfloat16, torch.complex64]
    ),
    steps=st.integers(1, 3),
)
@settings(deadline=None, max_examples=50)
def test_tensors_of_any_shape_dtype_and_step_come_out_as_they_were(shape, dtype, steps):
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    if shape:
        tensor = tensor[..., ::steps].transpose(0, -1)
    sent = send({"nested": [tensor, (tensor, "text")]})["nested"]
    assert sent[0].dtype == dtype
    assert torch.equal(sent[0], tensor)
    assert sent[1][0] is sent[0]


def test_lent_tensors_are_not_copied_and_all_keep_their_strides():
    written = []

    def make(pool):
        pool.allocate((3,), torch.uint8).fill_(1)
        tensor = pool.allocate((2, 4, 4, 3), torch.float32).normal_()
        written.append(tensor)
        return {"image": tensor.permute(0, 3, 1, 2), "last": tensor[1]}

    sent = send(None, make)
    assert torch.equal(sent["image"], written[0].permute(0, 3, 1, 2))
    assert sent["image"].is_contiguous(memory_format=torch.channels_last)
    written[0][1, 0, 0, 0] = 7  # the same memory
    assert sent["image"][1, 0, 0, 0] == 7 == sent["last"][0, 0, 0]
    copied = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert send(copied).stride() == copied.stride()
    expanded = torch.rand(1, 3).expand(4, 3)
    assert torch.equal(send(expanded), expanded)


def test_regions_beyond_those_in_use_give_their_pages_back():
    file = SharedFile(1)
    regions = Regions(file, keep=2)
    _, (_, descriptor) = file.__reduce__()  # as it is sent to workers

    def used():
        return os.fstat(descriptor.number).st_blocks * 512

    held = []
    for _ in range(10):
        region = regions.allocate()
        held.append(regions.buffer(region.number, MIB)[:MIB])
        held[-1][:] = 1
    assert used() > 10 * MIB
    held.clear()
    del region
    for _ in range(2):
        regions.allocate()
    assert regions.warm == 2
    assert used() < 3 * MIB


def test_a_larger_batch_finds_room_in_the_region_of_a_smaller_one():
    file = SharedFile(1)
    regions, pool = Regions(file, keep=1), RegionPool(file)
    for size in (10, 5 * MIB, 100, 9 * MIB):
        region = regions.allocate()
        assert region.number == 0
        pool.start(region.number)
        batch = [pool.allocate((size,), torch.uint8).fill_(number) for number in (1, 2)]
        content = dump_batch(batch, pool.locate)
        loaded = load_batch(content, regions.buffer(region.number, pool.used))
        assert (loaded[0] == 1).all()
        assert (loaded[1] == 2).all()
        del loaded, region


def test_mapped_arrays_are_mapped_again_and_not_copied(tmp_path):
    path = tmp_path / "column.npy"
    np.save(path, np.arange(1_000_000))
    column = np.load(path, mmap_mode="r")
    parts = {"map": column, "whole": np.asarray(column), "part": np.asarray(column)[1000:2000]}
    parts |= {"steps": column[::250_000], "own": np.arange(7)}
    reducers = {np.ndarray: reduce_array, np.memmap: reduce_array}
    sent, _ = dump_factory(parts, reducers)
    assert len(sent.content) < 3000
    loaded = sent.value()
    assert all(np.array_equal(loaded[name], parts[name]) for name in parts)
    assert not loaded["whole"].flags.owndata
