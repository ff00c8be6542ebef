"""What is kept, where, and how much of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from datapipe.errors import PlanError
from datapipe.quantities import parse_bytes

Keep = Literal["auto", "decoded", "encoded"]
PolicyName = Literal["auto", "pin", "next-use", "lru"]


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """Caches of a loader; sizes are bytes, or texts such as "8GB".

    Attributes:
        device: of the device that batches go to, see `make_loader(device=...)`: decoded images that
            lie there cross the bus once. A dataset that fits is there as a whole.
        memory: of this process; its worker processes share it.
        disk: folder on a fast disk of this machine; all ranks on it may share one, and what lies
            there is still good after a restart.
        disk_size: most that the folder may hold, of all datasets; None takes what is free, less a
            tenth.
        keep: "decoded" images, uint8, as they are before anything random is done to them and
            before they are normalised; "encoded" bytes, as they come from the shards; "auto" is
            decoded where the options allow it.
        policy: what stays when not all fits. "pin" keeps a fixed part, spread evenly over an
            epoch; "next-use" keeps in memory what the plan uses next; "lru" what was used last,
            to compare with. "auto" chooses by the plan.

    Raises:
        PlanError: an option is impossible.
    """

    device: int | str | None = None
    memory: int | str | None = None
    disk: str | os.PathLike[str] | None = None
    disk_size: int | str | None = None
    keep: Keep = "auto"
    policy: PolicyName = "auto"

    def __post_init__(self) -> None:
        for name in ("device", "memory", "disk_size"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_bytes(f"cache {name}", value))
        for name, known in (("keep", get_args(Keep)), ("policy", get_args(PolicyName))):
            if getattr(self, name) not in known:
                raise PlanError(
                    f"cache {name} {getattr(self, name)!r} is not one of {', '.join(known)}"
                )
        if self.disk is not None:
            if not isinstance(self.disk, str | os.PathLike) or not os.fspath(self.disk):
                raise PlanError(f"cache disk {self.disk!r}: give a folder, such as '/fast/cache'")
            # The program may go to another folder while the loader lives.
            object.__setattr__(self, "disk", os.path.abspath(self.disk))
        if self.device is None and self.memory is None and self.disk is None:
            raise PlanError(
                "a cache needs room: give CacheSpec(memory='8GB'), disk=..., device=... or several"
            )
        if self.disk_size is not None and self.disk is None:
            raise PlanError("cache disk_size is of a folder; give disk='/path' too")
