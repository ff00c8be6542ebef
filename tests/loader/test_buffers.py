import gc

import pytest
import torch

from datapipe.loader.batch.buffer_pool import BufferPool


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_memory_comes_back_when_the_last_tensor_that_shares_it_is_gone(dtype):
    pool = BufferPool(keep=2)
    tensor = pool.allocate((4, 3, 8, 8), dtype)
    assert tensor.dtype == dtype
    address = tensor.data_ptr()
    part = tensor[1:2].view(-1)
    del tensor
    gc.collect()
    assert pool.idle == 0
    array = part.numpy()
    del part
    gc.collect()
    assert pool.idle == 0
    del array
    gc.collect()
    assert pool.idle == 1
    assert pool.allocate((4, 3, 8, 8), dtype).data_ptr() == address


def test_idle_memory_is_bounded():
    pool = BufferPool(keep=3)
    held = [pool.allocate((1000,), torch.uint8) for _ in range(10)]
    held.clear()
    gc.collect()
    assert pool.idle == 3
    assert pool.allocate((0, 3, 8, 8), torch.float32).shape == (0, 3, 8, 8)  # takes none
    assert pool.idle == 3


def test_a_somewhat_larger_buffer_serves_and_a_much_larger_one_does_not():
    pool = BufferPool(keep=3)
    address = pool.allocate((1000,), torch.uint8).data_ptr()
    gc.collect()
    assert pool.allocate((900,), torch.uint8).data_ptr() == address
    gc.collect()
    assert pool.allocate((100,), torch.uint8).data_ptr() != address


def test_memory_is_reused_while_older_batches_are_kept_for_good():
    pool = BufferPool(keep=2)
    kept = [pool.allocate((100,), torch.uint8).fill_(number) for number in range(5)]
    address = pool.allocate((100,), torch.uint8).fill_(9).data_ptr()
    assert pool.allocate((100,), torch.uint8).data_ptr() == address
    assert [int(tensor[0]) for tensor in kept] == [0, 1, 2, 3, 4]
