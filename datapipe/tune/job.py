"""`tune_workers`: the smallest number of workers that is as fast as any."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

from datapipe.cpus import WorkerCount
from datapipe.declared import Count, Say, Seconds, Within, checked
from datapipe.errors import PlanError
from datapipe.loader.tuned_settings import Tuned, keep
from datapipe.profile.measure.usage import UsageMeter
from datapipe.tune.effects import MARGIN, Effects, choose
from datapipe.tune.paced import Pace, WaitShare, find_sufficient, least_waiting
from datapipe.tune.reason import explain, explain_pace, find_limit_of
from datapipe.tune.result import SweepProgress, TuneResult, summarise
from datapipe.tune.setting import Setting, grid
from datapipe.tune.sweep import Sweep, Tools
from datapipe.tune.trial import Make, Watcher

_KEPT = 2  # trials after which the best setting of another kind than the chosen one is kept

_TO_TRY = Say("the numbers to try, such as (0, 2, 4)")
_Part = Annotated[float, Within(above=0, below=1), Say("a share between 0 and 1, such as 0.01")]

logger = logging.getLogger(__name__)


@checked(PlanError)
def tune_workers(
    make: Annotated[
        Make, Say("a function of num_workers and prefetch_factor that returns a loader")
    ],
    *,
    num_workers: Annotated[Iterable[WorkerCount], _TO_TRY] = (0, 1, 2, 4, 8),
    prefetch_factor: Annotated[Iterable[Count], _TO_TRY] = (2, 4),
    budget: Seconds = 60.0,
    step_time: Seconds | None = None,
    max_wait: _Part = 0.01,
    max_memory: Annotated[float, Within(above=0), Say("bytes, above 0")] | None = None,
    train: Callable[[Any], object] | None = None,
    variants: Sequence[Mapping[str, Any]] = ({},),
    margin: _Part = MARGIN,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
    watch: Callable[[bool], Watcher] | None = None,
    on_trial: Callable[[SweepProgress], object] | None = None,
) -> TuneResult:
    """Find the smallest setting of a loader that is as fast as any, or as training needs.

    Trials are interleaved in rounds of random order and repeated; start and warm-up do not count.
    Rates are compared within rounds, so the drift of a machine cancels. Settings that are clearly
    slower, or larger and clearly no faster, are dropped early, and the time goes into the others.

    Ctrl-C ends the sweep, not the program: the result is what was known by then.

    Args:
        make: `make(num_workers=..., prefetch_factor=...)` returns a new iterable of batches: a
            datapipe loader, a `torch.utils.data.DataLoader`, or any other. With 0 workers it gets
            `prefetch_factor=None`, as torch wants it.
        num_workers, prefetch_factor: to try, in all combinations.
        budget: seconds for everything. It may be exceeded by the time of a single batch.
        step_time: seconds that training takes for a batch. Then the smallest setting is chosen that
            keeps waiting under `max_wait`.
        max_wait: share of its time that training may wait for batches.
        max_memory: bytes that all processes together may take. A setting that takes more is stopped
            and dropped, and larger ones of its kind are not tried.
        train: a step of training, called with a batch; `step_time` is then measured. It must
            return when the step is done: read a result from the device in it.
        variants: further arguments of `make`, each of which is tried in all combinations:
            `({"workers": "threads"}, {"workers": "processes"})`, say.
        margin: share of the rate that is not worth a larger setting.
        seed: of the order of trials.
        clock, sleep: read the time and spend it, in seconds.
        watch: makes a meter of memory and CPU time for a trial, with the argument whether to probe
            the interpreter's lock too. None is a `UsageMeter`, and none for a clock of your own.
        on_trial: called with the results so far after every trial.

    Returns:
        The setting, its rate, and the figures behind them. For a datapipe loader it is kept, so
        that `make_loader(num_workers="auto", prefetch_factor="auto")` finds it.

    Raises:
        PlanError: an argument is impossible, the loader fails with every setting, or the budget
            does not suffice for a single trial.
        KeyboardInterrupt: Ctrl-C came before anything was known.

    Examples:
        >>> def make(**workers):
        ...     return datapipe.make_loader("shards/", batch_size=4, **workers)
        >>> result = datapipe.tune_workers(make, num_workers=(0, 1), prefetch_factor=(2,), budget=2)
        >>> loader = make(
        ...     num_workers=result.num_workers, prefetch_factor=result.prefetch_factor
        ... )
    """
    settings = grid(tuple(num_workers), tuple(prefetch_factor), variants)
    if train is not None and step_time is not None:
        raise PlanError("step_time and train: give one, the other says the same")
    if watch is None and clock is time.perf_counter:
        watch = _meter
    found: dict[Setting, WaitShare] = {}

    def tell() -> None:
        if on_trial is not None:
            on_trial(SweepProgress.of(sweep, found))

    tools = Tools(
        make=make,
        clock=clock,
        watcher=watch,
        max_memory=max_memory,
        margin=margin,
        seed=seed,
        on_trial=tell,
    )
    sweep = Sweep(settings, budget, tools)
    interrupted = False
    sufficient: Setting | None = None
    pace: Pace | None = None
    if train is not None:
        pace = Pace(step=train, seconds=None, max_wait=max_wait)
    elif step_time is not None:
        seconds = step_time
        pace = Pace(step=lambda _: sleep(seconds), seconds=seconds, max_wait=max_wait)
    try:
        with tools.interrupt, warnings.catch_warnings():
            # The sweep finds out itself whether there are too many workers.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            sweep.touch()
            if pace is not None:
                sufficient = find_sufficient(sweep, pace, found)
            else:
                sweep.run()
    except KeyboardInterrupt:
        interrupted = True
        if not sweep.trials:
            raise
        logger.warning("interrupted; the result is what was known by then")
    return _result(
        sweep,
        found,
        sufficient,
        step_time=step_time,
        max_wait=max_wait,
        paced=pace is not None,
        interrupted=interrupted,
    )


def _result(
    sweep: Sweep,
    found: Mapping[Setting, WaitShare],
    sufficient: Setting | None,
    *,
    step_time: float | None,
    max_wait: float,
    paced: bool,
    interrupted: bool,
) -> TuneResult:
    effects = sweep.effects()
    if effects is None:
        _raise_nothing_known(sweep)
    margin = sweep.tools.margin
    if paced:
        chosen = (
            sufficient
            or least_waiting(found, max_wait)
            or choose(effects, effects.settings, margin)
        )
    else:
        left = [setting for setting in effects.settings if setting in sweep.active]
        chosen = choose(effects, left or effects.settings, margin)
    settled = sweep.active == [chosen] and not interrupted
    limit = find_limit_of(chosen, sweep.trials)
    rate = effects.interval(chosen)[0]
    waiting = found.get(chosen)
    step = step_time if step_time is not None or waiting is None else waiting.step
    step = step if paced else None
    room = None if step is None else rate * step
    if room is not None and step is not None:
        reason = explain_pace(
            chosen,
            sufficient=sufficient is not None,
            share=waiting.share if waiting is not None else None,
            room=room,
            max_wait=max_wait,
            step=step,
            limit=limit,
        )
    else:
        reason = explain(chosen, effects, margin=margin, settled=settled, limit=limit)
    measured = {trial.setting for trial in sweep.trials}
    untried = [s for s in sweep.settings if s not in measured and s not in sweep.dropped]
    if untried:
        reason += f". Not tried for want of time: {'; '.join(map(str, untried))}"
    _keep(sweep, effects, chosen, step)
    rows = summarise(sweep, effects, found)
    own = next(row for row in rows if row.setting == chosen)
    return TuneResult(
        num_workers=chosen.num_workers,
        prefetch_factor=chosen.prefetch_factor,
        variant=dict(chosen.variant),
        rate=rate,
        samples_rate=own.samples,
        room=room,
        waiting=waiting.share if waiting is not None else None,
        sufficient=sufficient is not None if paced and not interrupted else None,
        step_time=step,
        reason=reason,
        settled=sufficient is not None if paced else settled,
        limit=limit,
        settings=rows,
        trials=tuple(sweep.trials),
        seconds=sweep.tools.clock() - sweep.began,
        interrupted=interrupted,
    )


def _keep(sweep: Sweep, effects: Effects, chosen: Setting, step: float | None) -> None:
    """Keep the best setting of each variant of a datapipe loader for `num_workers="auto"`."""
    margin = sweep.tools.margin
    keys = {t.setting.variant: t.key for t in sweep.trials if t.key is not None}
    tried = sweep.tried()
    for variant, key in keys.items():
        # `num_workers=0` has no worker kind; it is listed under the first variant.
        of_kind = [s for s in effects.settings if s.variant == variant]
        best = chosen if chosen in of_kind else choose(effects, of_kind, margin)
        if best is not chosen and (step is not None or tried[best] < _KEPT):
            continue
        try:
            keep(
                key,
                Tuned(
                    num_workers=best.num_workers,
                    prefetch_factor=best.prefetch_factor,
                    rate=effects.interval(best)[0],
                    step_time=step,
                ),
            )
        except OSError as error:
            logger.warning("the result is not kept: %s", error)


def _meter(probe_gil: bool) -> Watcher:
    return UsageMeter(probe_gil=probe_gil)


def _raise_nothing_known(sweep: Sweep) -> NoReturn:
    if sweep.failed and len(sweep.dropped) == len(sweep.settings):
        setting, error = next(iter(sweep.failed.items()))
        raise PlanError(
            f"the loader fails with every setting; with {setting} it {sweep.dropped[setting]}"
        ) from error
    if sweep.dropped:
        setting, reason = next(iter(sweep.dropped.items()))
        raise PlanError(f"no setting is left: {setting} {reason}")
    spent = sweep.tools.clock() - sweep.began
    raise PlanError(
        f"budget {sweep.end - sweep.began:g} s: after {spent:.1f} s there was no group of batches "
        "to time; give more seconds, or smaller batches"
    )
