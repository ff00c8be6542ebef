"""Clock and meters of the machine that trials run on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from datapipe.profile.measure.usage import UsageMeter


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine that trials run on: by default this one. Tests give a clock of their own."""

    clock: Callable[[], float] = time.perf_counter  # seconds
    sleep: Callable[[float], object] = time.sleep
    # called with `probe_gil` for each trial; None if nothing can be metered
    meter: Callable[..., UsageMeter | None] = UsageMeter
