"""Where a loader stands in its plan, as a small plain dict."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any

from datapipe.errors import StateMismatch
from datapipe.plan.plan import BLOCK, PLAN_VERSION

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """The next unit: epoch, and units consumed globally in it."""

    epoch: int
    unit: int


def dump_state(position: Position, fingerprint: str, plan: dict[str, Any]) -> dict[str, Any]:
    """The state at a position: JSON-compatible, of constant size."""
    return {
        "version": STATE_VERSION,
        "plan_version": PLAN_VERSION,
        "fingerprint": fingerprint,
        "plan": dict(plan),
        "epoch": position.epoch,
        "block": position.unit // BLOCK,
        "unit": position.unit % BLOCK,
    }


def parse_state(
    state: dict[str, Any], fingerprint: str, plan: dict[str, Any], samples: int
) -> Position:
    """The position in a state, once it is sure that it belongs to this dataset and plan.

    Raises:
        StateMismatch: it is not a state, a newer version wrote it, or dataset or plan differ.
    """
    try:
        version, plan_version = state["version"], state["plan_version"]
        saved_plan, saved_fingerprint = dict(state["plan"]), state["fingerprint"]
        epoch, block, offset = (index(state[name]) for name in ("epoch", "block", "unit"))
    except (KeyError, TypeError, ValueError) as error:
        raise StateMismatch(
            f"this is no state of a datapipe loader ({type(error).__name__}: {error}); give what "
            "`loader.state_dict()` returned"
        ) from error
    if version != STATE_VERSION or plan_version != PLAN_VERSION:
        raise StateMismatch(
            f"state has version {version} and plan version {plan_version}, this datapipe reads "
            f"{STATE_VERSION} and {PLAN_VERSION}; use the version that saved it"
        )
    different = [
        f"{name}: {saved_plan.get(name)!r} in the state, {plan.get(name)!r} here"
        for name in sorted(saved_plan.keys() | plan.keys())
        if saved_plan.get(name) != plan.get(name)
    ]
    if saved_fingerprint != fingerprint:
        different.insert(
            0, f"dataset: {saved_fingerprint!s:.12}… in the state, {fingerprint:.12}… here"
        )
    if different:
        raise StateMismatch(
            f"the state belongs to another run ({'; '.join(different)}); open the dataset and give "
            "the options it was saved with"
        )
    position = Position(epoch, block * BLOCK + offset)
    if epoch < 0 or block < 0 or not 0 <= offset < BLOCK or position.unit >= samples:
        raise StateMismatch(
            f"state names epoch {epoch}, block {block}, unit {offset} of {samples} samples; it was "
            "changed after it was saved"
        )
    return position
