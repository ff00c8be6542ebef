"""Images of one batch of which some are frames of videos, several to a patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Bools, Int64
from datapipe.decode.forms.frame import FrameTransform
from datapipe.decode.image import Decoded, Encoded
from datapipe.decode.normalize import Values
from datapipe.decode.transform import ImageTransform
from datapipe.errors import DecodeError
from datapipe.loader.batch.image_batch import ImageContext, ImageSlots
from datapipe.plan.ragged import edges, grouped
from datapipe.text.frames import Frames


class VideoSlots(ImageSlots):
    """Images and videos of one batch: the rows of all videos are behind those of all images.

    The frames of a patch share its rows, and each fills its own part of them.
    """

    def __init__(
        self,
        context: ImageContext,
        samples: Int64,
        images: Int64,
        drawn_by: Callable[[int], tuple[int, int]],
        resident: Bools | None = None,
    ) -> None:
        assert resident is None, "with videos no image is kept on the device"
        assert context.videos is not None
        self._videos = context.videos
        super().__init__(context, samples, images, drawn_by)

    @property
    def _frames(self) -> Frames:
        frames = self._in_videos
        assert frames is not None, "a dataset without frames has `ImageSlots`"
        return frames

    def cut(self, start: int, stop: int) -> list[Sequence[Values]]:
        slots = range(start, stop)
        return [[self._part(slot, image) for image in self._images_of(slot)] for slot in slots]

    def decode(self, slot: int, number: int, data: Encoded) -> Decoded:
        image = super().decode(slot, number, data)
        at = self._starts[slot] + number
        first = self._sides[at - int(self._frames.numbers[at])]
        if self._is_frame[at] and (image.width, image.height) != first:
            raise DecodeError(
                f"it has {image.width}x{image.height} pixels, and the first frame of its video "
                f"{first[0]}x{first[1]}: frames of one patch need one size; scale them to it and "
                "pack the video again, or give on_error='skip'"
            )
        return image

    def empty(self, slot: int) -> None:
        for image in self._images_of(slot):
            self._empty[image] = True
            self._rows_of(image)[...] = 0
            if self._geometry is not None:
                self._geometry[image] = 0

    def result(self, *, complete: bool) -> dict[str, Any]:
        result: dict[str, Any] = {}
        images = np.flatnonzero(~self._is_frame)
        if complete or len(images):
            result["pixel_values"] = self.pixels[: self._image_rows]
            facts = self._forms.facts(*self._sizes)
            result |= {name: values[torch.from_numpy(images)] for name, values in facts.items()}
        grids = self._video_grids()
        if complete or len(grids):
            result["pixel_values_videos"] = self.pixels[self._image_rows :]
            result["video_grid_thw"] = torch.from_numpy(grids)
        return result

    @property
    def blank(self) -> Tensor:
        out = torch.zeros(len(self.pixels), dtype=torch.bool, device="cpu")
        for image in np.flatnonzero(self._empty).tolist():
            begin = self._begins[image]
            out[begin : begin + self._lengths[image]] = True
        return out

    def _count_rows(self) -> Int64:
        sizes = self._sizes
        rows, lengths = np.zeros((2, len(sizes[0])), np.int64)
        self._is_frame = np.zeros(len(rows), bool)
        for kind, at in self._by_kind():
            own = sizes[0][at], sizes[1][at]
            videos, frames = self._videos[kind], self._frames[at]
            if videos is None:
                rows[at] = lengths[at] = self._context.transforms[kind].rows(*own)
            else:
                rows[at], lengths[at] = videos.rows(*own, frames), videos.shared_rows(*own, frames)
                self._is_frame[at] = frames.counts > 0
        of_images = edges(np.where(self._is_frame, 0, rows))
        of_videos = edges(np.where(self._is_frame, rows, 0))
        self._image_rows = int(of_images[-1])
        begins = np.where(self._is_frame, self._image_rows + of_videos[:-1], of_images[:-1])
        self._begins, self._lengths = begins.tolist(), lengths.tolist()
        return rows

    def _video_grids(self) -> Int64:
        """Return patches along time, down and across of each video: int64 [videos, 3]."""
        grids = np.zeros((len(self._is_frame), 3), np.int64)
        firsts = self._is_frame & (self._frames.numbers == 0)
        for kind, images in self._by_kind():
            for count, found in self._frames[images].by_count():
                at = images[found][firsts[images[found]]]
                if len(at):
                    own = (sides[at] for sides in self._sizes)
                    grids[at] = self._form(kind, count).facts(*own)["video_grid_thw"]
        of_videos: Int64 = grids[firsts]
        return of_videos

    def _by_kind(self) -> list[tuple[int, Int64]]:
        if self._kinds is None:
            return [(0, np.arange(int(self.first[-1])))]
        return list(grouped(np.repeat(self._kinds, self._images)))

    def _form(self, kind: int, frames: int) -> FrameTransform:
        videos = self._videos[kind]
        assert videos is not None
        return videos.form(frames)

    def _transform(self, slot: int, image: int) -> ImageTransform:
        if not self._is_frame[image]:
            return super()._transform(slot, image)
        kind = 0 if self._kinds is None else int(self._kinds[slot])
        return self._form(kind, int(self._frames.counts[image]))

    def _images_of(self, slot: int) -> range:
        return range(self._starts[slot], self._starts[slot + 1])

    def _rows_of(self, image: int) -> Values:
        begin = self._begins[image]
        return self._array[begin : begin + self._lengths[image]]

    def _part(self, slot: int, image: int) -> Values:
        """Return what an image fills: its rows, or its part of those that it shares."""
        rows, form = self._rows_of(image), self._transform(slot, image)
        if not isinstance(form, FrameTransform):
            return rows
        return form.part(rows, int(self._frames.numbers[image]))
