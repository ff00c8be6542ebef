"""Text that stands for a video, for models with tokens of videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from datapipe.declared import Count, check_fields
from datapipe.errors import DecodeError, PlanError
from datapipe.short_repr import short_repr


@dataclass(frozen=True, kw_only=True, repr=False)
class VideoMarkup:
    """Text that a model expects for a video, whose frames `ImageSpec(video=...)` makes patches of.

    Attributes:
        token: the token that is repeated for a video, as it stands in the vocabulary.
        patch: text of each patch along time, with `token` once, which is repeated, and `{seconds}`
            for the mean time of its first and its last frame. None repeats the token for all
            patches at once.
        frames: frames of a patch, as `ImageSpec.temporal`.

    Raises:
        PlanError: a value is empty, or `patch` lacks the token or names something else in braces.

    Examples:
        >>> markup = datapipe.VideoMarkup(patch="<{seconds:.1f} seconds><|video_pad|>")
        >>> markup.times([0.0, 0.5, 1.0])
        [0.25, 1.0]
    """

    token: str = "<|video_pad|>"
    patch: str | None = None
    frames: Count = 2

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "video_markup ")
        if not self.token.strip():
            raise PlanError(f"video_markup token={self.token!r}: give a token of the vocabulary")
        if self.patch is None:
            return
        try:
            written = self.patch.format(seconds=0.0)
        except (LookupError, ValueError, AttributeError) as error:
            raise PlanError(
                f"video_markup patch={self.patch!r}: only {{seconds}} may stand in braces; double "
                "a brace that is meant"
            ) from error
        if written.count(self.token) != 1:
            raise PlanError(
                f"video_markup patch={self.patch!r} has {self.token!r} {written.count(self.token)} "
                "times; it has to stand there once, and is repeated as often as a patch has tokens"
            )

    def __repr__(self) -> str:
        return short_repr(self)

    def times(self, frames: Sequence[float]) -> list[float]:
        """Return the time of each patch of a video, from those of its frames, in seconds."""
        starts = range(0, len(frames), self.frames)
        return [(frames[at] + frames[min(at + self.frames, len(frames)) - 1]) / 2 for at in starts]

    def count(self, frames: int) -> list[int]:
        """Return the frames that each token, repeated for a patch or for all, stands for."""
        if self.patch is None:
            return [frames]
        return [min(self.frames, frames - at) for at in range(0, frames, self.frames)]

    def write(self, frames: Sequence[float]) -> str:
        """Return the text of a video by the times of its frames.

        `DecodeError` for a video of fewer frames than a patch, where each patch has its time.
        """
        if self.patch is None:
            return self.token
        if len(frames) < self.frames:
            raise DecodeError(
                f"a video has {len(frames)} frame{'s' * (len(frames) != 1)}, and the model takes "
                f"at least {self.frames}; pack more of its frames"
            )
        return "".join(self.patch.format(seconds=seconds) for seconds in self.times(frames))
