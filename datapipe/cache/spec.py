"""Options of the caches."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from datapipe.declared import Say, check_fields
from datapipe.errors import PlanError
from datapipe.quantities import Room

Keep = Literal["auto", "decoded", "encoded"]
PolicyName = Literal["auto", "pin", "next-use"]
MemoryRoom = Annotated[Room, Say("a size such as 8GB; a folder is CacheSpec(disk=...)")]


@dataclass(frozen=True)
class CacheSpec:
    """Caches of a loader; sizes are bytes, or texts such as "8GB".

    `cache="8GB"` is short for `cache=CacheSpec(memory="8GB")`.

    Attributes:
        memory: memory of this process, which its worker processes share.
        device: memory of the device that batches go to, see `make_loader(device=...)`. Decoded
            images in it cross the bus once.
        disk: folder on a fast disk of this machine. All ranks on it may share one, and entries are
            valid after a restart.
        disk_size: limit of the folder, for all datasets; None takes the free space, less a tenth.
        keep: "decoded" images, uint8, before random transforms and normalisation; "encoded" bytes
            of the shards; "auto" is decoded if the options allow it.
        policy: choice of the samples that are kept if not all fit. "pin" keeps a fixed part, spread
            evenly over an epoch; "next-use" keeps in memory the samples that the plan uses next.
            "auto" chooses by the plan.
        plan: folder in which ranks share the blocks of the plan, so that each is planned once. It
            keeps no samples.

    Raises:
        PlanError: an option is impossible.

    Examples:
        >>> cache = datapipe.CacheSpec(memory="1GB", disk="cache/", disk_size="10GB")
        >>> loader = datapipe.make_loader("shards/", batch_size=4, epochs=2, cache=cache)
        >>> batches = list(loader)
        >>> sorted(loader.stats())
        ['disk', 'memory', 'source']
    """

    memory: MemoryRoom | None = None
    _: KW_ONLY
    device: Room | None = None
    disk: str | os.PathLike[str] | None = None
    disk_size: Room | None = None
    keep: Keep = "auto"
    policy: PolicyName = "auto"
    plan: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "cache {}".format)
        for name in ("disk", "plan"):
            if getattr(self, name) is not None:
                # The program may go to another folder while the loader lives.
                object.__setattr__(self, name, os.path.abspath(getattr(self, name)))
        if self.plan is not None and os.path.exists(self.plan) and not os.path.isdir(self.plan):
            raise PlanError(f"cache plan {self.plan}: this is not a folder; give one")
        if not self.keeps_samples and self.plan is None:
            raise PlanError(
                "a cache needs room: give CacheSpec(memory='8GB'), disk=..., device=... or several"
            )
        if self.disk_size is not None and self.disk is None:
            raise PlanError("cache disk_size limits a folder; give disk='/path' too")

    @property
    def keeps_samples(self) -> bool:
        """True if samples are cached, and not the plan alone."""
        return self.device is not None or self.keeps_on_host

    @property
    def keeps_on_host(self) -> bool:
        """True if samples are cached elsewhere than on the device."""
        return self.memory is not None or self.disk is not None
