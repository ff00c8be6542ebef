"""Memory that worker processes share, and what is sent through it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import PlanError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.workers.ipc import (
    REGIONS,
    Report,
    dump_batch,
    dump_recipe,
    load_batch,
    load_recipe,
)
from datapipe.loader.workers.process_worker import RegionPool
from datapipe.loader.workers.shared_memory import Regions, SharedFile

MIB = 1 << 20


def send(value: Any, make: Callable[[RegionPool], Any] | None = None) -> Any:
    """A value, or what is made of lent tensors, as it comes out on the other side."""
    file = SharedFile(1)
    regions, pool = Regions(file, keep=1), RegionPool(file)
    region = regions.allocate()
    pool.start(region)
    content = dump_batch(make(pool) if make else value, pool.locate)
    loaded = load_batch(content, regions.buffer(region, max(1, pool.used)))
    regions.release(region)
    return loaded


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(
        [torch.uint8, torch.bool, torch.int64, torch.float32, torch.bfloat16, torch.complex64]
    ),
    steps=st.integers(1, 3),
)
@settings(deadline=None, max_examples=50)
def test_tensors_of_any_shape_dtype_and_step_come_out_as_they_were(
    shape: list[int], dtype: torch.dtype, steps: int
) -> None:
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    if shape:
        tensor = tensor[..., ::steps].transpose(0, -1)
    sent = send({"nested": [tensor, (tensor, "text")]})["nested"]
    assert sent[0].dtype == dtype
    assert torch.equal(sent[0], tensor)
    assert sent[1][0] is sent[0]


def test_lent_tensors_are_not_copied_and_keep_their_strides() -> None:
    written: list[torch.Tensor] = []

    def make(pool: RegionPool) -> Any:
        pool.allocate((3,), torch.uint8).fill_(1)
        tensor = pool.allocate((2, 4, 4, 3), torch.float32).normal_()
        written.append(tensor)
        return {"image": tensor.permute(0, 3, 1, 2), "last": tensor[1]}

    sent = send(None, make)
    assert torch.equal(sent["image"], written[0].permute(0, 3, 1, 2))
    assert sent["image"].is_contiguous(memory_format=torch.channels_last)
    written[0][1, 0, 0, 0] = 7  # the same memory
    assert sent["image"][1, 0, 0, 0] == 7 == sent["last"][0, 0, 0]


def test_the_strides_of_a_copied_tensor_stay() -> None:
    tensor = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert send(tensor).stride() == tensor.stride()
    expanded = torch.rand(1, 3).expand(4, 3)
    assert torch.equal(send(expanded), expanded)


def test_a_region_is_free_when_the_last_tensor_in_it_is_gone() -> None:
    file = SharedFile(1)
    regions = Regions(file, keep=2)
    region = regions.allocate()
    tensor = torch.from_numpy(regions.buffer(region, MIB))[5:]
    regions.release(region)
    assert regions.allocate() != region
    part = tensor.view(-1)[3:4]
    del tensor
    gc.collect()
    other = regions.allocate()
    assert other != region
    regions.release(other)
    del part
    gc.collect()
    assert regions.allocate() == region


def test_regions_beyond_those_in_use_give_their_pages_back() -> None:
    file = SharedFile(1)
    regions = Regions(file, keep=2)

    def used() -> int:
        return os.fstat(file._descriptor).st_blocks * 512

    held = []
    for _ in range(10):
        region = regions.allocate()
        held.append(regions.buffer(region, MIB)[:MIB])
        held[-1][:] = 1
        regions.release(region)
    assert used() > 10 * MIB
    held.clear()
    for _ in range(2):
        regions.release(regions.allocate())
    assert regions.warm == 2
    assert used() < 3 * MIB


def test_a_larger_batch_finds_room_in_the_region_of_a_smaller_one() -> None:
    file = SharedFile(1)
    regions, pool = Regions(file, keep=1), RegionPool(file)
    for size in (10, 5 * MIB, 100, 9 * MIB):
        region = regions.allocate()
        assert region == 0
        pool.start(region)
        first, second = (pool.allocate((size,), torch.uint8).fill_(n) for n in (1, 2))
        content = dump_batch((first, second), pool.locate)
        one, two = load_batch(content, regions.buffer(region, pool.used))
        assert (one == 1).all()
        assert (two == 2).all()
        del one, two
        regions.release(region)


def test_a_pinned_batch_does_not_hold_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without an accelerator nothing can be pinned; that it is a copy is what matters here.
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    file = SharedFile(1)
    regions, pool = Regions(file, keep=1), RegionPool(file)
    REGIONS[-1] = regions
    region = regions.allocate()
    pool.start(region)
    written = pool.allocate((MIB,), torch.uint8).fill_(3)
    report = Report(-1, 0, region, dump_batch([written], pool.locate), pool.used).pin_memory()
    regions.release(region)
    assert regions.allocate() == region
    written.fill_(4)
    assert (report.pinned[0] == 3).all()


def test_mapped_arrays_are_mapped_again_and_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "column.npy"
    np.save(path, np.arange(1_000_000))
    column = np.asarray(np.load(path, mmap_mode="r"))
    parts = {"whole": column, "part": column[1000:2000], "steps": column[::250_000]}
    recipe = dump_recipe(parts)
    assert len(recipe.content) < 2000
    assert not recipe.needs_script
    loaded = load_recipe(recipe, None)
    assert all(np.array_equal(loaded[name], parts[name]) for name in parts)
    assert not loaded["whole"].flags.owndata


class Arena:
    """Part of a user's transform that looks like a pool of ours."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)


def test_only_our_own_pool_is_replaced_in_another_process() -> None:
    loaded = load_recipe(dump_recipe([Arena(), BufferPool(keep=2)]), "pool there")
    assert isinstance(loaded[0], Arena)
    assert loaded[1] == "pool there"


def test_what_cannot_be_sent_is_refused_with_its_name() -> None:
    def inner() -> None: ...

    for value in (inner, lambda: 0):
        with pytest.raises(PlanError, match=r"(inner|lambda).*top of a module"):
            dump_recipe([value])
