"""Progress: one bar at a time on a terminal."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from datapipe.progress import Progress


def test_a_job_inside_of_another_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.progress.is_watched", lambda stream: stream is sys.stderr)
    opening, counting = Progress("opening", unit="dataset"), Progress("counting", unit="sample")
    with opening as outer, counting as inner:
        inner.advance(5)
        assert (has_bar(outer), has_bar(inner)) == (True, False)
    with Progress("planning", unit="sample") as after:
        assert has_bar(after)


def has_bar(progress: Any) -> bool:
    return progress._bar is not None
