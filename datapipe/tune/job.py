"""`tune_workers`: the smallest number of workers that is as fast as any."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any

from datapipe.cpus import WorkerCount
from datapipe.declared import Count, Part, Positive, Say, Seconds, checked
from datapipe.errors import PlanError
from datapipe.loader.tuned_settings import Tuned, keep
from datapipe.tune.choice import MARGIN, choose
from datapipe.tune.paced import WaitShare, find_sufficient, least_waiting
from datapipe.tune.result import TuneResult, explain, explain_pace, find_limit_of, summarise
from datapipe.tune.setting import Setting, grid
from datapipe.tune.sweep import Goal, Sweep
from datapipe.tune.trial import Machine, Make, Trial

_TO_TRY = "the numbers to try, such as"
MakeLoader = Annotated[
    Make, Say("a function of num_workers and prefetch_factor that returns a loader")
]
MemoryLimit = Annotated[Positive, Say("bytes, above 0")]

logger = logging.getLogger(__name__)


@checked(PlanError)
def tune_workers(
    make: MakeLoader,
    *,
    num_workers: Annotated[Iterable[WorkerCount], Say(f"{_TO_TRY} (0, 2, 4)")] = (0, 1, 2, 4, 8),
    prefetch_factor: Annotated[Iterable[Count], Say(f"{_TO_TRY} (2, 4)")] = (2, 4),
    budget: Seconds = 60.0,
    step_time: Seconds | None = None,
    max_wait: Part = 0.01,
    max_memory: MemoryLimit | None = None,
    train: Callable[[Any], object] | None = None,
    variants: Sequence[Mapping[str, Any]] = ({},),
    margin: Part = MARGIN,
    on_trial: Callable[[Trial], object] | None = None,
) -> TuneResult:
    """Find the smallest setting of a loader that is as fast as any, or as training needs.

    Numbers of workers are tried by size until more are no faster. Those that are not clearly slower
    are then tried in turn, round after round; start and warm-up do not count. Rates are compared
    within rounds, so the drift of a machine cancels. Settings that are measurably slower, or larger
    and no faster, are dropped, and the time goes into the others.

    Ctrl-C ends the sweep, not the program: the result is what was known by then.

    Args:
        make: `make(num_workers=..., prefetch_factor=...)` returns a new iterable of batches: a
            datapipe loader, a `torch.utils.data.DataLoader`, or any other. With 0 workers it gets
            `prefetch_factor=None`, as torch wants it.
        num_workers, prefetch_factor: values to try, in all combinations.
        budget: seconds for everything. It may be exceeded by the time of a single batch.
        step_time: seconds that training takes for a batch. Then the smallest setting is chosen that
            keeps waiting under `max_wait`.
        max_wait: share of its time that training may wait for batches.
        max_memory: bytes that all processes together may take. A setting that takes more is stopped
            and dropped, and larger ones of its kind are not tried.
        train: a step of training, called with a batch; `step_time` is then measured. It must
            return when the step is done: read a result from the device in it.
        variants: further arguments of `make`; all combinations are tried:
            for example `({"workers": "threads"}, {"workers": "processes"})`.
        margin: gain in rate that does not justify a larger setting, as a share.
        on_trial: called with every trial that counted batches, once it is over.

    Returns:
        The setting, its rate, and the figures behind them. For a datapipe loader it is kept, so
        that `make_loader(num_workers="auto", prefetch_factor="auto")` finds it.

    Raises:
        PlanError: an argument is impossible, the loader fails with every setting, or the budget is
            too small for a single trial.
        KeyboardInterrupt: Ctrl-C came before anything was known.

    Examples:
        >>> def make(**workers):
        ...     return datapipe.make_loader("shards/", batch_size=4, **workers)
        >>> result = datapipe.tune_workers(make, num_workers=(0, 1), prefetch_factor=(2,), budget=5)
        >>> loader = make(
        ...     num_workers=result.num_workers, prefetch_factor=result.prefetch_factor
        ... )
    """
    if train is not None and step_time is not None:
        raise PlanError("step_time and train: give one, the other says the same")
    goal = Goal(
        budget=budget,
        step_time=step_time,
        max_wait=max_wait,
        max_memory=max_memory,
        train=train,
        margin=margin,
    )
    settings = grid(tuple(num_workers), tuple(prefetch_factor), variants)
    return tune(make, settings, goal, Machine(), on_trial)


def tune(
    make: Make,
    settings: Sequence[Setting],
    goal: Goal,
    machine: Machine,
    on_trial: Callable[[Trial], object] | None = None,
) -> TuneResult:
    """Find the smallest setting of a loader on a machine, as `tune_workers` does on this one."""
    waits: dict[Setting, WaitShare] = {}
    with _remembered_interrupt() as check, warnings.catch_warnings():
        # The sweep finds out itself whether there are too many workers.
        warnings.filterwarnings("ignore", message="This DataLoader will create")

        def tell(trial: Trial) -> None:
            check()
            if on_trial is not None:
                on_trial(trial)

        sweep = Sweep(make, settings, goal, machine, tell)
        interrupted = False
        try:
            if goal.is_paced:
                find_sufficient(sweep, waits)
            else:
                sweep.race()
        except KeyboardInterrupt:
            interrupted = True
            if not sweep.trials:
                raise
            logger.warning("interrupted; these are the results so far")
    result = _result(sweep, waits, interrupted=interrupted)
    _keep(sweep, result)
    return result


@contextmanager
def _remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `KeyboardInterrupt` if Ctrl-C raised one anywhere before.

    Python swallows an exception in `__del__` or a callback, and a sweep would continue for minutes.
    """
    before = signal.getsignal(signal.SIGINT)
    came = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal came
        assert callable(before)
        try:
            before(number, frame)
        except KeyboardInterrupt:
            came = True
            raise

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    # Only the main thread may set handlers; it is also the one that Ctrl-C interrupts.
    replaced = callable(before) and threading.current_thread() is threading.main_thread()
    if replaced:
        signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        if replaced:
            signal.signal(signal.SIGINT, before)


def _result(sweep: Sweep, waits: Mapping[Setting, WaitShare], *, interrupted: bool) -> TuneResult:
    goal, measured, rounds = sweep.goal, sweep.measured(), sweep.rounds()
    if not measured:
        raise _nothing_known(sweep) from sweep.error
    chosen = least_waiting(waits, goal.max_wait) if goal.is_paced else None
    if chosen is None:
        left = [s for s in measured if s in sweep.active and not goal.is_paced]
        chosen = choose(rounds, left or measured, goal.margin)
    limit = find_limit_of(chosen, sweep.trials)
    rows = tuple(summarise(sweep, setting, waits.get(setting)) for setting in sweep.settings)
    row = next(row for row in rows if row.setting == chosen)
    assert row.rate is not None, "a choice was measured"
    step, room, sufficient = goal.step_time, None, None
    if step is None and chosen in waits:
        step = waits[chosen].step
    if step is not None:
        room = row.rate * step
        sufficient = settled = row.waiting is not None and row.waiting <= goal.max_wait
        reason = explain_pace(sweep, chosen, share=row.waiting, room=room, step=step, limit=limit)
    else:
        settled = sweep.active == [chosen] and not interrupted
        reason = explain(sweep, chosen, settled=settled, limit=limit)
    untried = [s for s in sweep.settings if s not in measured and s not in sweep.dropped]
    if untried:
        reason += f". Not compared for lack of time: {'; '.join(map(str, untried))}"
    return TuneResult(
        num_workers=chosen.num_workers,
        prefetch_factor=chosen.prefetch_factor,
        variant=dict(chosen.variant),
        rate=row.rate,
        samples_rate=row.samples,
        room=room,
        waiting=row.waiting,
        sufficient=None if interrupted else sufficient,
        step_time=step,
        reason=reason,
        settled=settled,
        limit=limit,
        chosen=row,
        settings=rows,
        trials=tuple(sweep.trials),
        seconds=sweep.machine.clock() - sweep.began,
        interrupted=interrupted,
    )


def _keep(sweep: Sweep, result: TuneResult) -> None:
    """Keep the setting of a datapipe loader for `num_workers="auto"`."""
    chosen = result.chosen.setting
    key = next((trial.key for trial in sweep.trials if trial.setting == chosen), None)
    if key is None:
        return
    names = ("num_workers", "prefetch_factor", "rate", "step_time")
    try:
        keep(key, Tuned(**{name: getattr(result, name) for name in names}))
    except OSError as error:
        logger.warning("the result is not kept: %s", error)


def _nothing_known(sweep: Sweep) -> PlanError:
    if sweep.dropped:
        setting, reason = next(iter(sweep.dropped.items()))
        return PlanError(f"no setting is left: {setting} {reason}")
    spent = sweep.machine.clock() - sweep.began
    return PlanError(
        f"budget {sweep.goal.budget:g} s: after {spent:.1f} s there was no group of batches "
        "to time; give more seconds, or smaller batches"
    )
