"""Samples that failed and were skipped."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from datapipe.errors import DatapipeError, SampleError

logger = logging.getLogger("datapipe.loader")

_LOGGED = 10


class Skips:
    """Counter of skipped samples, which logs the first few; more than `limit` are refused."""

    def __init__(self, limit: int | None) -> None:
        self.count = 0
        self._limit = limit

    def note(self, errors: Iterable[SampleError]) -> None:
        """Count the errors of a batch; raise DatapipeError if more were skipped than allowed."""
        for error in errors:
            self.count += 1
            if self.count <= _LOGGED:
                logger.warning("skipped %s", error)
            if self.count == _LOGGED:
                logger.warning("further skipped samples are only counted, in loader.skipped")
            if self._limit is not None and self.count > self._limit:
                raise DatapipeError(
                    f"{self.count} samples were skipped, more than max_skipped={self._limit}; the "
                    f"last: {error}"
                ) from error


def without_frames(error: SampleError) -> SampleError:
    """Return the error without tracebacks, whose frames would keep the batch alive in a cycle."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
