"""Process group of which a test is one process, and no other exists."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[None]:
    """Be one process of a group whose other processes do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
