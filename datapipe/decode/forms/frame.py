"""Frames of videos, several of which are one patch along time, as in the Qwen2-VL family."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from datapipe.array_types import Int64, UInt8
from datapipe.decode.forms.image_transform import ImageTransform
from datapipe.decode.forms.native import NativeTransform
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values
from datapipe.decode.spec import ImageSpec
from datapipe.geometry.crop import Draw, Placement
from datapipe.geometry.sizes import native_size
from datapipe.text.frames import Frames


class FrameTransform(NativeTransform):
    """Form of the frames of a video of so many: each has a part of the rows of its patch.

    Rows and tokens are those of a patch along time. `place` and `finish` take the `part` of a frame
    in them: [rows, 3, frames, patch**2], where the last frame of a video may count several times.
    """

    def __init__(self, spec: ImageSpec, frames: int) -> None:
        super().__init__(spec)
        assert spec.video is not None
        self._video = spec.video
        self._frames = frames
        self._row = (3 * self._patch**2,)  # of one frame

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        """Return `video_grid_thw` of n videos of so many frames, by the size of a frame of each."""
        patches = -(-self._frames // self.spec.temporal)  # the last frame fills the last patch
        return {"video_grid_thw": self._grids(widths, heights, patches)}

    def part(self, rows: Values, number: int) -> Values:
        """Return the part of a frame, by its number in the video, in the rows of its patch."""
        temporal = self.spec.temporal
        at = number % temporal
        stop = temporal if number == self._frames - 1 else at + 1
        return rows.reshape(len(rows), 3, temporal, self._patch**2)[:, :, at:stop]

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        self._check(image, out, 3, out.shape[2], self._patch**2)
        return self._write(image, out)

    def finish(self, values: UInt8, out: Values) -> None:
        for at in range(out.shape[2]):
            self._normalizer.write_planes(values.reshape(out[:, :, at].shape), out[:, :, at])

    def _sizes(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        video = self._video
        together = video.limits == "video"
        return native_size(
            widths,
            heights,
            multiple_of=self._unit,
            min_pixels=video.min_pixels,
            max_pixels=video.max_pixels,
            least_side=self._unit if together else 1,
            frames=self._frames if together else None,
            temporal=self.spec.temporal,
        )


class VideoSizes:
    """Sizes of images of which some are frames of videos; all int64 [n] in and out.

    The frames of a video get the size of its first one. The last frame of each patch along time
    has the rows and tokens of the patch, and those before it have none.
    """

    def __init__(self, images: ImageTransform) -> None:
        assert isinstance(images, NativeTransform)
        self._images = images
        self._forms: dict[int, FrameTransform] = {}

    @staticmethod
    def of(images: ImageTransform) -> VideoSizes | None:
        """Return the sizes for a transform; None if frames are images like others."""
        return None if images.spec.video is None else VideoSizes(images)

    def form(self, frames: int) -> FrameTransform:
        """Return the form of the frames of a video of so many."""
        if frames not in self._forms:
            self._forms[frames] = FrameTransform(self._images.spec, frames)
        return self._forms[frames]

    def cells(self, widths: Int64, heights: Int64, frames: Frames) -> Int64:
        """Return rows and columns in tokens: int64 [n, 2]."""
        cells = self._images.cells(widths, heights)
        for count, at in frames.by_count():
            first = frames.firsts[at]
            cells[at] = self.form(count).cells(widths[first], heights[first])
        return cells

    def tokens(self, widths: Int64, heights: Int64, frames: Frames) -> Int64:
        """Return the tokens."""
        last = (frames.counts == 0) | frames.ends(self._images.spec.temporal)
        return np.where(last, self.cells(widths, heights, frames).prod(axis=1), 0)

    def rows(self, widths: Int64, heights: Int64, frames: Frames) -> Int64:
        """Return the rows of `pixel_values` or `pixel_values_videos`."""
        return self.tokens(widths, heights, frames) * self._images.spec.merge**2

    def shared_rows(self, widths: Int64, heights: Int64, frames: Frames) -> Int64:
        """Return the rows that an image fills, or shares with the other frames of its patch."""
        tokens: Int64 = self.cells(widths, heights, frames).prod(axis=1)
        return tokens * self._images.spec.merge**2
