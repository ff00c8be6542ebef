"""The exceptions datapipe raises.

All are `ValueError`s, so that code which does not know datapipe still catches them, and each
message names the value, the cause and the remedy. Only a `SampleError` concerns a single sample and
can be skipped by `on_error="skip"`.
"""

from __future__ import annotations

from functools import partial


class DatapipeError(ValueError):
    """Base of every error that a user can cause or mend.

    Examples:
        >>> try:
        ...     datapipe.make_loader("photos/", batch_size=4)
        ... except datapipe.DatapipeError as error:
        ...     print(type(error).__name__)
        IndexMismatch
    """


class PackError(DatapipeError):
    """A pack cannot start, continue or finish.

    Examples:
        >>> datapipe.pack_dataset("no such folder/", "out/")
        Traceback (most recent call last):
        datapipe.errors.PackError: ...
    """


class PlanError(DatapipeError):
    """The options of an epoch contradict each other or the dataset.

    Examples:
        >>> datapipe.make_loader("shards/", batch_size=0)
        Traceback (most recent call last):
        datapipe.errors.PlanError: ...
    """


class EndlessError(PlanError, TypeError):
    """A run without end has no length. A `TypeError` too, as `list` and `len` expect.

    Examples:
        >>> len(datapipe.make_loader("shards/", batch_size=4, epochs=None))
        Traceback (most recent call last):
        datapipe.errors.EndlessError: ...
    """


class StateMismatch(DatapipeError):
    """A saved state belongs to another dataset, other plan options or a newer version.

    Examples:
        >>> state = datapipe.make_loader("shards/", batch_size=4, seed=1).state_dict()
        >>> datapipe.make_loader("shards/", batch_size=4, seed=2).load_state_dict(state)
        Traceback (most recent call last):
        datapipe.errors.StateMismatch: ...
    """


class IndexMismatch(DatapipeError):
    """Index, manifest and data on disk do not describe the same dataset.

    Examples:
        >>> datapipe.make_loader("photos/", batch_size=4)
        Traceback (most recent call last):
        datapipe.errors.IndexMismatch: ...
    """


class StoreError(DatapipeError):
    """Bytes that the index promises cannot be read.

    Examples:
        >>> tar = Path("tars/000.tar")
        >>> _ = tar.write_bytes(tar.read_bytes()[:9000])
        >>> datapipe.index_shards("tars/")
        Traceback (most recent call last):
        datapipe.errors.StoreError: ...
    """


class WorkerError(DatapipeError):
    """A worker thread or process cannot start, or ended before its job was done.

    Examples:
        >>> from datapipe.workers.processes import ProcessPool
        >>> ProcessPool(lambda: abs, 1)
        Traceback (most recent call last):
        datapipe.errors.WorkerError: ...
    """


class SampleError(DatapipeError):
    """One sample cannot be used.

    Attributes:
        reason: the fault, without its location.
        key, shard, member: its location, as far as known.

    Examples:
        >>> def transform(sample, generator):
        ...     raise RuntimeError("no image as I like them")
        >>> loader = datapipe.make_loader("shards/", batch_size=4, transform=transform)
        >>> try:
        ...     batches = list(loader)
        ... except datapipe.SampleError as error:
        ...     print(type(error).__name__)
        TransformError
    """

    def __init__(self, reason: str, *, key: str = "", shard: str = "", member: str = "") -> None:
        self.reason = reason
        self.key = key
        self.shard = shard
        self.member = member
        super().__init__(reason)

    def __str__(self) -> str:
        names = {"sample": self.key, "member": self.member, "of": self.shard}
        places = [f"{name} {value}" for name, value in names.items() if value]
        return f"{' '.join(places)}: {self.reason}" if places else self.reason

    def __reduce__(self) -> tuple[object, ...]:
        # The default reduction of exceptions, which worker processes rely on, loses keyword-only
        # arguments.
        where = {"key": self.key, "shard": self.shard, "member": self.member}
        return partial(type(self), **where), (self.reason,)


class DecodeError(SampleError):
    """An image or text member cannot be decoded.

    Examples:
        >>> _ = Path("photos/000.jpg").write_bytes(Path("photos/000.jpg").read_bytes()[:500])
        >>> report = datapipe.pack_dataset("photos/", "some/")  # refused here, not in training
        >>> report.samples, report.rejected
        (7, 1)
    """


class MissingMember(SampleError):
    """A sample lacks a member, or a raw input names a file that is not there.

    Examples:
        >>> Path("photos/000.jpg").unlink()
        >>> report = datapipe.pack_dataset("photos/", "some/")
        >>> report.samples, report.rejected
        (7, 1)
    """


class TransformError(SampleError):
    """A user's transform failed on this sample.

    Examples:
        >>> def transform(sample, generator):
        ...     return None
        >>> next(iter(datapipe.make_loader("shards/", batch_size=4, transform=transform)))
        Traceback (most recent call last):
        datapipe.errors.TransformError: ...
    """
