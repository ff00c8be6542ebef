"""Pixels written into a batch: the place, and that kernel and torch give the same values."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from datapipe.decode import normalize
from datapipe.decode.batched import normalize_batch
from datapipe.decode.normalize import ImageMoves, Normalizer, array_of
from datapipe.late_module import LateModule
from tests.programs import python
from tests.waiting import PATIENCE

CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
KINDS = [
    (None, torch.uint8),
    (None, torch.float32),
    (CLIP, torch.float32),
    (None, torch.bfloat16),
    (CLIP, torch.bfloat16),
]


def write(normalizer, image, out):
    normalizer.write(image.permute(1, 2, 0).numpy(), array_of(out))


def picture(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
    return pixels.permute(2, 0, 1)


@pytest.mark.parametrize(("mean_std", "dtype"), KINDS)
def test_strides_of_image_and_batch_change_nothing_and_only_its_place_is_written(
    kernel, mean_std, dtype
):
    image = picture(11, 67)
    four = torch.zeros((11, 67, 4), dtype=torch.uint8).permute(2, 0, 1)
    larger = torch.zeros((14, 71, 3), dtype=torch.uint8).permute(2, 0, 1)
    planes = torch.zeros((3, 13, 69), dtype=torch.uint8)
    images = {
        "three bytes": image,
        "part of a larger one": larger[:, 2:13, 1:68].copy_(image),
        "four bytes": four[:3].copy_(image),
        "planes": planes[:, 1:-1, 1:-1].copy_(image),
        "turned": image.transpose(1, 2).contiguous().transpose(1, 2),
    }
    batches = {
        "batch": torch.full((4, 3, 20, 90), 9, dtype=dtype),
        "channels last": torch.full((4, 20, 90, 3), 9, dtype=dtype).permute(0, 3, 1, 2),
        "rows before channels": torch.full((4, 20, 3, 90), 9, dtype=dtype).transpose(1, 2),
    }
    normalizer = Normalizer(mean_std, dtype)
    (expected,) = normalize_batch(image[None], mean_std, dtype)
    for source, pixels in images.items():
        for target, batch in batches.items():
            place = batch[2, :, 5:16, 7:74]
            write(normalizer, pixels, place)
            assert torch.equal(place, expected), (source, target)
            place[:] = 9
            assert (batch == 9).all(), (source, target)


@given(
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([torch.uint8, torch.float32]),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(0, 200),
    st.integers(0, 70),
    st.booleans(),
)
@example(40, 120, torch.float32, [False, True], 3, 5, False)  # more than is worked out at a time
@example(40, 120, torch.float32, [False, True], 3, 5, True)
@example(1, 5000, torch.uint8, [True], 0, 1, True)
@example(16, 24, torch.uint8, [False, True, False], 64, 1, True)  # lines of a cache, whole
@example(16, 24, torch.float32, [False, True, False], 64, 1, True)
def test_images_are_gathered_as_they_are_written_one_by_one(
    height, width, dtype, mirrored, before, after, interleaved
):
    normalize.KERNEL.load()
    normalizer = Normalizer(None if dtype == torch.uint8 else CLIP, dtype)
    count, length = len(mirrored), 3 * height * width
    generator = np.random.default_rng(length)
    starts = before + (length + after) * generator.permutation(count)
    source = generator.integers(0, 256, before + (length + after) * count, np.uint8)
    source.flags.writeable = False
    rows = generator.permutation(count + 2)[:count]
    # Of any alignment, as memory of others is, or of lines of a cache.
    size = (count + 2) * length * dtype.itemsize
    memory = np.full(size + 128, 7, np.uint8)
    shift = -memory.ctypes.data % 64 + before % 64 // dtype.itemsize * dtype.itemsize
    out = torch.from_numpy(memory[shift : shift + size]).view(dtype)
    out = out.view(count + 2, 3, height, width)
    expected = out.clone()
    for start, row, flip in zip(starts, rows, mirrored, strict=True):
        values = torch.from_numpy(source[start : start + length].copy())
        if interleaved:
            values = values.view(1, height, width, 3).permute(0, 3, 1, 2)
        values = values.reshape(1, 3, height, width)
        values = values.flip(-1) if flip else values
        normalizer.write_planes(values.contiguous().numpy(), expected[row : row + 1].numpy())
    moves = ImageMoves(source, starts, rows, np.array(mirrored))
    assert normalizer.gather([moves], out.numpy(), interleaved=interleaved)
    assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))
    assert (memory[:shift] == 7).all()
    assert (memory[shift + size :] == 7).all()


def test_an_image_at_the_end_of_its_memory_is_written_whole(kernel):
    memory = torch.arange(4 * 23 + 21, dtype=torch.uint8)
    image = torch.as_strided(memory, (3, 5, 7), (1, 23, 3))
    out = torch.empty((3, 5, 7), dtype=torch.uint8)
    write(Normalizer(None, torch.uint8), image, out)
    assert torch.equal(out, image)


def test_an_empty_image_writes_nothing(kernel):
    out = torch.empty((3, 0, 7))
    write(Normalizer(CLIP, torch.float32), torch.empty((3, 0, 7), dtype=torch.uint8), out)


def test_the_kernel_is_loaded_once_it_pays(kernel_loader):
    kernel_loader.after = 5 * 4 * 4
    normalizer, image = Normalizer(None, torch.uint8), picture(4, 4)
    for number in range(5):
        kernel_loader.wait()
        assert kernel_loader.module is None, number
        write(normalizer, image, torch.empty(3, 4, 4, dtype=torch.uint8))
    kernel_loader.wait()
    assert kernel_loader.module is not None
    assert kernel_loader.module.__name__ == "datapipe.decode.pixel_kernels"


def test_a_fork_waits_for_the_kernel_to_be_loaded():
    go_on = threading.Event()

    class Slow(LateModule):
        def load(self):
            assert go_on.wait(PATIENCE)
            return super().load()

    loader = Slow("datapipe.plan.rng", after=1)
    loader.count(1)
    waiter = threading.Thread(target=loader.wait)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    go_on.set()
    waiter.join(PATIENCE)
    assert loader.module is not None


def test_the_first_images_of_a_process_do_not_wait_for_numba():
    program = (
        "import sys, numpy as np, torch\n"
        "from datapipe.decode.normalize import Normalizer\n"
        "pixels = np.zeros((8, 8, 3), np.uint8)\n"
        "Normalizer(None, torch.float32).write(pixels, np.empty((3, 8, 8), np.float32))\n"
        "sys.exit('numba' in sys.modules)\n"
    )
    assert python(program).returncode == 0
