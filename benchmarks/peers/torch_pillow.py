"""torch's DataLoader with Pillow, from loose files."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, Task

PACKAGES = ("torch", "pillow")


def make(task: Task) -> Callable[[], Run]:
    loader = DataLoader(
        LooseFiles(task),
        batch_size=BATCH,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=padded if task.mixed else None,
    )
    return task.epochs(loader)


class LooseFiles(Dataset[tuple[Tensor, str, str]]):
    """Dataset of a folder of images with captions, as PyTorch users write it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.paths = task.paths()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, str, str]:
        return self.task.sample(self.paths[index])


def padded(samples: list[tuple[Tensor, str, str]]) -> tuple[Tensor, list[str], list[str]]:
    """Images of several sizes as [B, 3, H, W] of the largest, zeros to the right and below."""
    images = [image for image, _, _ in samples]
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    shape = (len(images), 3, height, width)
    # In shared memory from the start, as torch's own collate does it in a worker: the batch is then
    # handed over without a copy.
    size = torch.Size(shape).numel() * images[0].element_size()
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    batch = torch.empty(0, dtype=images[0].dtype).set_(storage, 0, shape)  # type: ignore[call-overload]
    for place, image in zip(batch, images, strict=True):
        _, rows, columns = image.shape
        place[:, :rows, :columns] = image
        place[:, rows:] = 0
        place[:, :rows, columns:] = 0
    return batch, [text for _, text, _ in samples], [key for _, _, key in samples]
