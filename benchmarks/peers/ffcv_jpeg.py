"""FFCV: threads around libjpeg-turbo and OpenCV's INTER_AREA, from its own file.

FFCV's image field encodes every image anew, at quality 90. `same_bytes` stores the JPEG files as
they are, in FFCV's own layout, so that it decodes what the others decode.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import BytesField, RGBImageField
from ffcv.fields.rgb_image import IMAGE_MODES, ResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, MEAN, SIDE, STD, Task

PACKAGES = ("ffcv", "numba", "torch")
_FILE = "photos.beton"


def make(task: Task, *, same_bytes: bool) -> Callable[[], Run]:
    name = "ffcv-same" if same_bytes else "ffcv-q90"
    folder = task.form(name, partial(write, task, same_bytes))
    pixels: list[Any] = [WholeImage((SIDE, SIDE))]
    if task.normalized:
        mean, std = (255 * np.array(values) for values in (MEAN, STD))
        pixels.append(NormalizeImage(mean, std, np.float32))
    # Channels stay last in memory, as FFCV's documentation has it: the form in which it is fastest.
    pixels += [ToTensor(), ToTorchImage(channels_last=True)]
    loader = Loader(
        str(folder / _FILE),
        batch_size=BATCH,
        num_workers=task.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": pixels},
        custom_fields={"image": SameBytes} if same_bytes else {},
    )
    return partial(task.time, loader, lambda batch: len(batch[0]), skip=task.workers)


def write(task: Task, same_bytes: bool, folder: Path) -> None:
    image = SameBytes() if same_bytes else RGBImageField(write_mode="jpg")
    fields = {"image": image, "txt": BytesField()}
    writer = DatasetWriter(str(folder / _FILE), fields, num_workers=1)
    writer.from_indexed_dataset(LooseFiles(task, same_bytes))


class LooseFiles:
    """Dataset for FFCV's writer: images (or JPEG bytes) with captions."""

    def __init__(self, task: Task, same_bytes: bool) -> None:
        self.paths = task.paths()
        self.same_bytes = same_bytes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path = Path(self.paths[index])
        data = path.read_bytes()
        text = np.frombuffer(path.with_suffix(".txt").read_bytes(), np.uint8)
        return data if self.same_bytes else Image.open(io.BytesIO(data)).convert("RGB"), text


class SameBytes(RGBImageField):  # type: ignore[misc]
    """FFCV's image field, but with the JPEG file as it is."""

    @staticmethod
    def from_binary(binary: Any) -> SameBytes:
        return SameBytes()

    def encode(self, destination: Any, image: bytes, malloc: Callable[[int], Any]) -> None:
        with Image.open(io.BytesIO(image)) as opened:
            destination["width"], destination["height"] = opened.size
        destination["mode"] = IMAGE_MODES["jpg"]
        destination["data_ptr"], storage = malloc(len(image))
        storage[:] = np.frombuffer(image, np.uint8)


class WholeImage(ResizedCropRGBImageDecoder):  # type: ignore[misc]
    """FFCV's decoder with the whole image as its crop: what the others resize."""

    scale = (1.0, 1.0)
    ratio = (1.0, 1.0)

    @property
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        return whole


def whole(height: int, width: int, scale: Any, ratio: Any) -> tuple[int, int, int, int]:
    """Row, column, height and width of the crop. Compiled by FFCV."""
    return 0, 0, height, width
