"""Position of a loader in its plan, as a small dict for JSON, and its count of skipped samples."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import index
from typing import Any

from datapipe.errors import DatapipeError, PlanError, SampleError, StateMismatch
from datapipe.index.files.sealed_json import sum_of
from datapipe.plan.options import PLAN_VERSION
from datapipe.plan.steps import Position
from datapipe.report.table import counted

logger = logging.getLogger("datapipe.loader")

STATE_VERSION = 3

_REMEMBERED = 1024  # batches
_LOGGED = 10  # skipped samples
_SUM = "crc32"
_OF_SAMPLES = ("where", "selection", "text", "max_frames", "samples")


@dataclass(frozen=True, slots=True)
class Run:
    """Progress of a run: one iteration over a loader, which may be interrupted and resumed."""

    position: Position  # the next unit
    start: Position  # the first unit of the run
    # `steps`, `tokens`: of the run so far, the tokens over all ranks
    steps: int = 0
    tokens: int = 0

    @staticmethod
    def at(position: Position) -> Run:
        """Return a run that begins at a position."""
        return Run(position, position)

    def after(self, position: Position, tokens: int | None) -> Run:
        """Return the run one step later."""
        return replace(
            self, position=position, steps=self.steps + 1, tokens=self.tokens + (tokens or 0)
        )


class History:
    """Runs after each of the latest batches of an iterator, which has `yielded` so many."""

    def __init__(self, run: Run) -> None:
        self._recent = deque([run], _REMEMBERED)
        self.yielded = 0

    def add(self, run: Run) -> None:
        """Add the run after another batch."""
        self._recent.append(run)
        self.yielded += 1

    def after(self, step: int) -> Run:
        """Return the run after `step` batches; PlanError if too few, or over 1,000 more."""
        if not 0 <= step <= self.yielded:
            raise PlanError(f"step {step}: the iterator has yielded {self.yielded} batches")
        back = self.yielded - step
        if back >= len(self._recent):
            raise PlanError(
                f"step {step} is {back} batches back, and {len(self._recent)} are remembered"
            )
        return self._recent[-1 - back]


class Skips:
    """Counter of skipped samples, which logs the first few; more than `limit` are refused."""

    def __init__(self, limit: int | None) -> None:
        self.count = 0
        self._limit = limit

    def note(self, errors: Iterable[SampleError]) -> None:
        """Count the errors of a batch; raise DatapipeError if more were skipped than allowed."""
        for error in errors:
            self.count += 1
            if self.count <= _LOGGED:
                logger.warning("skipped %s", error)
            if self.count == _LOGGED:
                logger.warning("further skipped samples are only counted, in loader.skipped")
            if self._limit is not None and self.count > self._limit:
                raise DatapipeError(
                    f"{counted(self.count, 'sample')} skipped, more than max_skipped="
                    f"{self._limit}; the last: {error}"
                ) from error


def dump_state(run: Run, fingerprint: str, plan: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """Return the state of a run: small, for JSON, with a checksum. `facts` are for people alone."""
    state = {
        **facts,
        "version": STATE_VERSION,
        "plan_version": PLAN_VERSION,
        "fingerprint": fingerprint,
        "plan": dict(plan),
        **asdict(run.position),
        "run": {"steps": run.steps, "tokens": run.tokens, **asdict(run.start)},
    }
    return {**state, _SUM: sum_of(state)}


def parse_state(state: Mapping[str, Any]) -> tuple[Run, str, dict[str, Any]]:
    """Return the run in a state, the fingerprint of its data, and `Schedule.identity`.

    `StateMismatch` for a state that was changed, or is none.
    """
    try:
        version, plan_version = state["version"], state["plan_version"]
        saved_plan, fingerprint = dict(state["plan"]), state["fingerprint"]
        whole = state[_SUM] == sum_of({k: value for k, value in state.items() if k != _SUM})
        if (version, plan_version) == (STATE_VERSION, PLAN_VERSION):
            run = Run(
                _parse_position(state),
                _parse_position(state["run"]),
                index(state["run"]["steps"]),
                index(state["run"]["tokens"]),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise StateMismatch(
            "this is not the state of a datapipe loader; give what `loader.state_dict()` returned"
        ) from error
    if not whole:
        raise StateMismatch(
            "the state was changed after it was saved: its checksum does not match its content; "
            "load an earlier one"
        )
    if (version, plan_version) != (STATE_VERSION, PLAN_VERSION):
        raise StateMismatch(
            f"state has version {version!r} and plan version {plan_version!r}, this datapipe reads "
            f"{STATE_VERSION} and {PLAN_VERSION}; use the version that saved it"
        )
    return run, fingerprint, saved_plan


def _parse_position(fields: Mapping[str, Any]) -> Position:
    return Position(*(index(fields[name]) for name in ("epoch", "block", "unit", "before")))


def dataset_alone(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a plan says about a dataset that was given alone; None for a mixture."""
    try:
        (part,) = plan["mixture"]["legs"][0]["datasets"].items()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    name, facts = part
    return None if name else dict(facts)


def differences(
    saved: Mapping[str, Any], here: Mapping[str, Any], where: str = "in the state"
) -> list[str]:
    """Return each option in which two plans differ; `where` says where the saved plan is."""
    different = compare(_without_mixture(saved), _without_mixture(here), where, "here")
    # The digest of the selection follows from other options.
    return [text for text in different if not text.startswith("selection:")] or different


def _without_mixture(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan in which a dataset given alone has its options beside those of the plan."""
    alone = dataset_alone(plan)
    if alone is None:
        return dict(plan)
    options = {name: value for name, value in plan.items() if name != "mixture"}
    return options | {name: alone.get(name) for name in _OF_SAMPLES}


def compare(
    one: Mapping[str, Any], other: Mapping[str, Any], of_one: str, of_other: str, prefix: str = ""
) -> list[str]:
    """Return a text for each option in which two differ; inner ones have their names before."""
    different = []
    for name in sorted(one.keys() | other.keys()):
        first, second = one.get(name), other.get(name)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            different += compare(first, second, of_one, of_other, f"{prefix}{name}.")
        elif first != second:
            different.append(f"{prefix}{name}: {first!r} {of_one}, {second!r} {of_other}")
    return different
