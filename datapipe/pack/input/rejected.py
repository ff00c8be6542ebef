"""Reject of an input that raised an error, for every reader and worker."""

from __future__ import annotations

from datapipe.errors import SampleError
from datapipe.pack.input.raw_sample import Reject, printable


def rejected(source: str, error: SampleError | RecursionError) -> Reject:
    """Return the reject of an input with which something is wrong."""
    if isinstance(error, RecursionError):
        return Reject(source, "record is nested too deeply", "DecodeError")
    file = error.member if error.member != source else ""
    return Reject(source, printable(error.reason), type(error).__name__, file)
