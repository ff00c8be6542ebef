"""Options of `make_loader` that belong together; the first field of each is its short form.

`pack=4096` is `pack=PackSpec(4096)`, `device="cuda"` is `device=DeviceSpec("cuda")`. Nothing here
needs torch, so that the command line takes its options from the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from datapipe.declared import Count, Natural, Refused, Say, Seconds, Word, check_fields, check_value
from datapipe.errors import PlanError
from datapipe.plan.options import PlanOptions
from datapipe.quantities import Bytes
from datapipe.remote.folder import RemoteOptions

if TYPE_CHECKING:
    import torch

S = TypeVar("S")

Workers = Literal["threads", "processes", "ray"]


def _device(device: Any) -> str | int | torch.device:
    import torch

    if isinstance(device, torch.device):
        return device
    try:
        return check_value("", device, Word | int, PlanError)  # type: ignore[no-any-return]
    except PlanError:
        raise Refused from None


Device = Annotated[
    "str | int | torch.device", _device, Say("a device such as 'cpu', 'cuda' or 'cuda:1'")
]


@dataclass(frozen=True)
class PackSpec:
    """Packs: samples put together without padding, and without attention between them.

    Attributes:
        tokens: tokens of a pack.
        window: most samples that wait for a pack they fit into.
        multiple_of: pad each sample in a pack to a multiple of this number of tokens. Context
            parallelism needs it.
        max_images: most images of a pack.
        max_samples: most samples of a pack.
        max_patches: most patches or tiles of a pack: rows of `pixel_values`. It replaces
            `max_images` if images differ in size.
        static_shapes: pad packs to constant shapes, for compiled models: tokens are padded
            to `tokens`, `cu_seq_lens` to `max_samples` (by default one in 16 tokens), images to
            `max_images` (by default as many as fit).

    Raises:
        PlanError: a value is impossible, or two contradict each other.

    Examples:
        >>> PackSpec(4096, multiple_of=8).window
        256
    """

    tokens: Count
    _: KW_ONLY
    window: Count = 256
    multiple_of: Count = 1
    max_images: Count | None = None
    max_samples: Count | None = None
    max_patches: Count | None = None
    static_shapes: bool = False

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "pack {}".format)
        PlanOptions(shuffle=True, seed=0, **self.plan_options())  # refuses contradictions

    def plan_options(self) -> dict[str, Any]:
        """Return the fields that the plan needs, under the names of `PlanOptions`."""
        return {
            "pack": self.tokens,
            "pack_window": self.window,
            "pack_multiple_of": self.multiple_of,
            "max_images": self.max_images,
            "max_samples": self.max_samples,
            "max_patches": self.max_patches,
        }


@dataclass(frozen=True)
class BatchSpec:
    """Size of a batch, and constant shapes of padded batches for compiled models.

    Attributes:
        batch_size: samples a rank takes in a step; with `pack` packs, by default 1; with
            `max_tokens` the most samples of a batch.
        pad_to: pad every sample to this number of tokens, so that all batches have one shape.
            Longer samples are treated by `TextSpec.overlong`.
        multiple_of: round the longest sample of a batch up to a multiple of this number of
            tokens, so that batches have few shapes.
        sample_images: most images of a sample. `pixel_values` is filled with zeros to as many
            images for each sample of the batch.
        sample_patches: most patches or tiles of a sample. It replaces `sample_images` if images
            differ in size.

    Raises:
        PlanError: a value is impossible, or two contradict each other.

    Examples:
        >>> text = datapipe.TextSpec(tokenizer="tokenizer.json", template="caption", image_tokens=4)
        >>> batch = datapipe.BatchSpec(2, pad_to=32, sample_images=2)
        >>> loader = datapipe.make_loader("shards/", batch_size=batch, text=text)
        >>> {(*batch["input_ids"].shape, len(batch["pixel_values"])) for batch in loader}
        {(2, 32, 4)}
    """

    batch_size: Count | None = None
    _: KW_ONLY
    pad_to: Count | None = None
    multiple_of: Count = 1
    sample_images: Count | None = None
    sample_patches: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        if self.pad_to is not None and self.multiple_of > 1:
            raise PlanError(
                f"pad_to={self.pad_to} and multiple_of={self.multiple_of} both set "
                "the length of a batch; give one of them"
            )
        if self.sample_images is not None and self.sample_patches is not None:
            raise PlanError(
                f"sample_images={self.sample_images} and sample_patches={self.sample_patches} both "
                "limit the rows of a sample; give one of them"
            )

    @property
    def sample_rows(self) -> int | None:
        """Rows of `pixel_values` for each sample; None if they are as many as its images have."""
        return self.sample_images or self.sample_patches

    def plan_options(self) -> dict[str, Any]:
        """Return the fields that the plan needs, under the names of `PlanOptions`."""
        return {"max_images": self.sample_images, "max_patches": self.sample_patches}


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """End of a run beside `epochs`, and accumulation of steps into one of the optimizer.

    Attributes:
        max_steps: most steps of a run, over as many epochs as `epochs` allows.
        train_tokens: a run ends with the step that reaches this number of tokens over all ranks.
        global_batch_size: units of one optimizer step. `loader.accumulation_steps` follows from it
            and the world size.
        max_skipped: raise once more samples than this were skipped, with `on_error="skip"`.

    Raises:
        PlanError: a value is impossible.

    Examples:
        >>> run = datapipe.RunSpec(max_steps=5, global_batch_size=8)
        >>> loader = datapipe.make_loader("shards/", batch_size=2, epochs=None, run=run)
        >>> len(loader), loader.accumulation_steps
        (5, 4)
    """

    max_steps: Count | None = None
    train_tokens: Count | None = None
    global_batch_size: Count | None = None
    max_skipped: Natural | None = None

    def __post_init__(self) -> None:
        check_fields(self, PlanError)


@dataclass(frozen=True)
class DeviceSpec:
    """Device that batches go to, and their memory layout.

    Attributes:
        device: device to which batches are copied, such as "cuda", one ahead of the training loop.
            Images cross the bus as uint8 and are normalised there. None leaves batches in the CPU's
            memory.
        channels_last: make the values of a pixel adjacent, which is faster for convolutions; it
            needs `device`.
        pin_memory: batches in page-locked memory, for loops that copy them to a device themselves.

    Raises:
        PlanError: a value is impossible, or `channels_last` has no device.

    Examples:
        >>> device = datapipe.DeviceSpec("cpu", channels_last=True)  # "cuda" in training
        >>> loader = datapipe.make_loader("shards/", batch_size=2, device=device)
        >>> next(iter(loader))["pixel_values"].is_contiguous(memory_format=torch.channels_last)
        True
    """

    device: Device | None = None
    _: KW_ONLY
    channels_last: bool = False
    pin_memory: bool = False

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        if self.channels_last and self.device is None:
            raise PlanError(
                "channels_last lays images out on a device; give device=, such as 'cpu'"
            )


@dataclass(frozen=True)
class WorkerSpec:
    """Kind of workers that read and decode.

    Attributes:
        kind: "threads", or "processes" for a transform or tokenizer in Python that holds the
            interpreter's lock: functions must then be importable, defined at the top of a module.
            Or "ray" for tasks on a Ray cluster, whose nodes see the same paths. Batches are the
            same.
        persistent: keep worker processes from one iteration to the next, until `loader.close()` or
            until the loader is deleted; starting them takes seconds.
        decode_once: ranks of `mesh` that take the same samples (peers of tensor, context or
            pipeline parallelism) decode them once: the first loads, and the others receive its
            batches over the groups of the mesh.
        stall_warning: seconds after which the log names the sample that a late batch waits for.

    Raises:
        PlanError: a value is impossible.

    Examples:
        >>> workers = datapipe.WorkerSpec("processes", persistent=True, stall_warning=30)
        >>> loader = datapipe.make_loader("shards/", batch_size=2, num_workers=2, workers=workers)
    """

    kind: Workers = "threads"
    _: KW_ONLY
    persistent: bool = True
    decode_once: bool = False
    stall_warning: Seconds = 30.0

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "workers {}".format)


@dataclass(frozen=True, kw_only=True)
class RemoteSpec:
    """Options of reading a dataset behind a URL.

    Attributes:
        read_ahead: bytes (a number, or "1GB") that are read before they are needed, beyond the
            current steps of the workers.
        concurrency: most requests in flight.
        storage_options: options of the filesystem in fsspec, such as credentials or an endpoint.

    Raises:
        PlanError: a value is impossible.

    Examples:
        >>> remote = datapipe.RemoteSpec(read_ahead="1GB", storage_options={"anon": True})
        >>> loader = datapipe.make_loader("s3://bucket/shards", remote=remote)  # doctest: +SKIP
    """

    read_ahead: Bytes = "256MB"
    concurrency: Count = 64
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "remote {}".format)

    def folder_options(self) -> RemoteOptions:
        """Return the options of each folder that is read."""
        storage = dict(self.storage_options or {})
        return RemoteOptions(concurrency=self.concurrency, storage_options=storage)


def as_spec(kind: type[S], given: Any) -> S:
    """Return the spec that was given, or the one of a short form; None is the default."""
    if isinstance(given, kind):
        return given
    make: Callable[..., S] = kind
    return make() if given is None else make(given)
