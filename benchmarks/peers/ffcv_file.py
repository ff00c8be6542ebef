"""FFCV: threads around libjpeg-turbo and OpenCV's INTER_AREA, from its own file.

FFCV's image field encodes every image again, at quality 90 ("q90"). "same" stores the JPEG files as
they are, so that it decodes what the others decode. "raw" stores pixels of the size that is trained
on.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
from ffcv.fields import BytesField, RGBImageField
from ffcv.fields.rgb_image import IMAGE_MODES, ResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.common import Run, made_once
from benchmarks.peers.work import BATCH, MEAN, SIDE, STD, Task

PACKAGES = {"make": ("ffcv", "numba", "torch")}
_FILE = "photos.beton"

Images = Literal["same", "q90", "raw"]


def make(task: Task, *, images: Images, epochs: int = 1) -> Callable[[], Run]:
    name = f"ffcv-raw-{SIDE}" if images == "raw" else f"ffcv-{images}"
    folder = made_once(Path(task.forms) / name, partial(write, task, images))
    decoder = SimpleRGBImageDecoder() if images == "raw" else WholeImage((SIDE, SIDE))
    pixels: list[Any] = [decoder]
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
        custom_fields={"image": SameBytes} if images == "same" else {},
    )

    # One iterator after the other: a round begins with the iterator of its first epoch.
    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            return chain.from_iterable(repeat(loader, epochs))

    return task.epochs(Epochs())


def write(task: Task, images: Images, folder: Path) -> None:
    mode = "raw" if images == "raw" else "jpg"
    image = SameBytes() if images == "same" else RGBImageField(write_mode=mode)
    fields = {"image": image, "txt": BytesField()}
    writer = DatasetWriter(str(folder / _FILE), fields, num_workers=1)
    writer.from_indexed_dataset(LooseFiles(task, images))


class LooseFiles:
    """Dataset for FFCV's writer: images, or JPEG bytes, with captions."""

    def __init__(self, task: Task, images: Images) -> None:
        self.paths, self.images = task.paths(), images

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path = Path(self.paths[index])
        data = path.read_bytes()
        text = np.frombuffer(path.with_suffix(".txt").read_bytes(), np.uint8)
        if self.images == "same":
            return data, text
        image = Image.open(io.BytesIO(data)).convert("RGB")
        if self.images == "raw":
            return np.array(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)), text
        return image, text


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
