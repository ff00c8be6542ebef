"""The exceptions datapipe raises.

All are `ValueError`s, so that code which does not know datapipe still catches them, and each
message names the value, the cause and the remedy. Only a `SampleError` concerns a single sample and
can be skipped by `on_error="skip"`.
"""

from __future__ import annotations


class DatapipeError(ValueError):
    """Base of every error that a user can cause or mend."""


class PackError(DatapipeError):
    """A pack cannot start, go on or finish."""


class PlanError(DatapipeError):
    """The options of an epoch contradict each other or the dataset."""


class EndlessError(PlanError, TypeError):
    """A run without end has no length. A `TypeError` too, as `list` and `len` expect."""


class StateMismatch(DatapipeError):
    """A saved state belongs to another dataset, other plan options or a newer version."""


class IndexMismatch(DatapipeError):
    """Index, manifest and data on disk do not describe the same dataset."""


class StoreError(DatapipeError):
    """Bytes that the index promises cannot be read."""


class SampleError(DatapipeError):
    """One sample cannot be used.

    Attributes:
        reason: what is wrong, without the place.
        key, shard, member: where, as far as known; filled in by whoever knows them.
    """

    def __init__(self, reason: str, *, key: str = "", shard: str = "", member: str = "") -> None:
        self.reason = reason
        self.key = key
        self.shard = shard
        self.member = member
        super().__init__(reason)

    def __str__(self) -> str:
        places = [
            f"{name} {value}"
            for name, value in (
                ("sample", self.key),
                ("member", self.member),
                ("of", self.shard),
            )
            if value
        ]
        return f"{' '.join(places)}: {self.reason}" if places else self.reason

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only attributes do not survive the default reduction of exceptions,
        # which worker processes and pytest-xdist rely on.
        return (_rebuild, (type(self), self.reason, self.key, self.shard, self.member))


def _rebuild(
    kind: type[SampleError], reason: str, key: str, shard: str, member: str
) -> SampleError:
    return kind(reason, key=key, shard=shard, member=member)


class DecodeError(SampleError):
    """An image or text member cannot be decoded."""


class MissingMember(SampleError):
    """A sample lacks a member, or a raw input names a file that is not there."""


class TransformError(SampleError):
    """A user's transform failed on this sample."""
