"""One step as torch's profiler sees it: exchange with other ranks, gaps of the GPU, operators.

The profiler sees what Python cannot: the collectives that DDP and FSDP start from C++, and when the
kernels of a GPU run. It costs some microseconds an operator, so a few steps are recorded.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from datapipe.diagnosis.step_roofline import Operator
from datapipe.monitor.intervals import Interval, total, union, without
from datapipe.monitor.operators import OperatorEvent, computes, operators_of
from datapipe.monitor.trace import profiled

logger = logging.getLogger(__name__)

# Backends name their collectives `gloo:all_reduce`, NCCL its kernels `ncclDevKernel_AllReduce_...`.
_BACKENDS = ("gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """A turn of the loop that was recorded. Times are in seconds.

    Attributes:
        turn: its number, which is the same on all ranks.
        seconds: of the turn, waiting included; on a GPU from its first kernel to its last.
        waited: for the batch, on the host.
        exchange: in collectives while nothing else ran.
        hidden: in collectives while other work ran.
        busy: in which the GPU had work; None without a GPU.
        operators: that computed.
    """

    turn: int
    seconds: float
    waited: float
    exchange: float
    hidden: float
    busy: float | None
    operators: tuple[Operator, ...]


class StepRecorder:
    """Recorder of single turns by torch's profiler. For the thread that runs the loop."""

    def __init__(self) -> None:
        self._profiler: Any = None
        self._replaced: dict[str, Any] = {}
        self._begun = 0
        self._broken = False

    def begin(self) -> None:
        """Start the profiler, unless another one is there or it cannot be used."""
        torch = sys.modules.get("torch")
        if self._broken or torch is None or profiled() or _scheduled():
            return
        try:
            from torch.autograd.profiler import profile

            device = "cuda" if torch.cuda.is_initialized() else None
            self._profiler = profile(
                use_kineto=True, use_device=device, record_shapes=True, with_flops=True
            )
            # Kineto reads its level when it is first used; torch 2.13 prints two lines otherwise.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self._profiler.__enter__()
            self._make_way()
        except BaseException as error:
            self._stop()
            if not isinstance(error, Exception):
                raise
            self._give_up(error)  # the profiler may fail for any reason
        self._begun = time.perf_counter_ns()

    def end(self, *, turn: int, waited: float, counts: bool) -> StepSample | None:
        """Stop the profiler; return the sample, None if there is none or it does not count."""
        profiler = self._profiler
        if profiler is None:
            return None
        took = time.perf_counter_ns() - self._begun
        try:
            self._stop()
            if not counts:
                return None
            events = profiler.kineto_results.events()
            return sample_of(events, turn=turn, took=took, waited=waited)
        except Exception as error:
            self._give_up(error)
            return None

    def _make_way(self) -> None:
        """Let a profiler that begins meanwhile take over, where torch would raise an error."""
        profiler = sys.modules["torch"].autograd.profiler
        for name in ("_prepare_profiler", "_enable_profiler"):
            begin = getattr(profiler, name, None)
            if begin is None:  # of another version
                continue

            def take_over(*given: Any, _begin: Any = begin, **named: Any) -> Any:
                self._stop()
                return _begin(*given, **named)

            self._replaced[name] = begin
            setattr(profiler, name, take_over)

    def _stop(self) -> None:
        """Stop the profiler, however far it has come."""
        while self._replaced:
            setattr(sys.modules["torch"].autograd.profiler, *self._replaced.popitem())
        try:
            if self._profiler is not None and profiled():
                self._profiler.__exit__(None, None, None)
        finally:
            # Again, if an interrupt cut it short.
            if self._profiler is not None and profiled():
                sys.modules["torch"].autograd._disable_profiler()
            self._profiler = None

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        logger.warning(
            "exchange and the roofline of steps stay unknown, as torch's profiler failed: %s", error
        )


def sample_of(events: Iterable[Any], *, turn: int, took: int, waited: float) -> StepSample:
    """Make a sample of the events of Kineto, in a turn of `took` ns after waiting for its batch."""
    host_type = sys.modules["torch"].autograd.DeviceType.CPU
    exchange: list[Interval] = []
    kernels: list[Interval] = []  # of the GPU, collectives left out
    on_gpu: list[Interval] = []
    launched: dict[int, int] = {}
    host: list[OperatorEvent] = []
    for event in events:
        name = event.name()
        on_host = event.device_type() == host_type
        if on_host and not (computes(name) or name.startswith(_BACKENDS)):
            continue
        start = event.start_ns()
        span = start, start + event.duration_ns()
        if not on_host:
            if _kind(event) not in _KERNELS:
                continue
            on_gpu.append(span)
            if "nccl" in name.lower():
                exchange.append(span)
            elif _kind(event) == "kernel":
                kernels.append(span)
                cause = event.linked_correlation_id()
                launched[cause] = launched.get(cause, 0) + span[1] - span[0]
        elif name.startswith(_BACKENDS):
            exchange.append(span)
        elif not event.is_async():
            host.append(OperatorEvent(event.start_thread_id(), *span, name, event.flops(), event))
    operators, computing = operators_of(host, launched)
    took += round(1e9 * waited)
    if kernels:
        computing, took = kernels, max(end for _, end in on_gpu) - min(start for start, _ in on_gpu)
    exposed = min(without(exchange, computing), took)
    return StepSample(
        turn=turn,
        seconds=max(took, 1) / 1e9,
        waited=waited,
        exchange=exposed / 1e9,
        hidden=max(total(union(exchange)) - exposed, 0) / 1e9,
        busy=total(union(on_gpu)) / 1e9 if on_gpu else None,
        operators=tuple(operators),
    )


def _scheduled() -> bool:
    """Check whether there is a `torch.profiler.profile`, which may have begun to prepare itself.

    Two at once end the process. It counts its steps here until its `with` block is left.
    """
    from torch.autograd import profiler

    steps = getattr(getattr(profiler, "KinetoStepTracker", None), "_step_dict", {})
    return "ProfilerStep" in steps


def _kind(event: Any) -> str:
    """Return the kind of an event of a GPU, which torch says from version 2.12 on."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if getattr(event, "is_user_annotation", bool)():
        return "gpu_user_annotation"
    name = event.name()
    kinds = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
    return next((kind for start, kind in kinds.items() if name.startswith(start)), "kernel")
