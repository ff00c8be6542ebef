"""Mixtures in the commands: files as arguments, and the tables of their plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from datapipe.cli.output import shown
from datapipe.errors import PlanError
from datapipe.mixture.given import mixture_of
from datapipe.mixture.spec import Mixture, MixtureGroup
from datapipe.report.table import Table, counted

if TYPE_CHECKING:
    from datapipe.loader.plan_report import DatasetPlan, MixturePlan, Phase

REASONS = {
    "where": "by where",
    "unusable": "with unusable texts",
    "overlong": "overlong",
    "images": "with too many images or patches",
    "empty": "without a token",
    "limit": "over limit",
    "last_step": "with the last step",
}
"""Reasons of `LeftOut`, and that of a dropped last step."""

_MOST = 30  # datasets of a table, and phases
_LONGEST = 48  # characters of a name
_MOST_SHARES = 8  # of a phase


def mixture_in(path: str, *, validation: bool = False) -> Mixture | None:
    """Return the mixture of a file, or its validation; None if the path is a dataset.

    PlanError if the file cannot be read, or there is no validation.
    """
    mixture = mixture_of(path)
    if not validation:
        return None if mixture.is_alone else mixture
    if mixture.validation is None:
        what = "is not a mixture" if mixture.is_alone else "has no validation"
        raise PlanError(
            f"--validation: {path} {what}; give the file of a mixture with datasets under its "
            "option validation"
        )
    return mixture.validation


def dropping_overlong(node: Any) -> Any:
    """Return a mixture, or a part of one, with overlong samples dropped, not refused."""
    if isinstance(node, Mixture | MixtureGroup):
        return replace(node, children=tuple(map(dropping_overlong, node.children)))
    if node.text is None or node.text.overlong != "raise":
        return node
    return replace(node, text=replace(node.text, overlong="drop"))


def refuses_overlong(mixture: Mixture) -> bool:
    return any(entry.text and entry.text.overlong == "raise" for entry in mixture.datasets)


def datasets_table(plan: MixturePlan) -> Table:
    """Return a table with a row for each dataset and group, the largest if there are many."""
    rows = [*_rows(plan.datasets)]
    if len(plan.datasets) > 1:
        rows.append(plan.total)
    cells = [_cells(row, plan) for row in rows]
    return list(cells[0]), [list(row.values()) for row in cells]


def _cells(one: DatasetPlan, plan: MixturePlan) -> dict[str, str]:
    total, name = plan.total, shown(one.name)
    if len(name) > _LONGEST:  # paths differ at their ends
        name = f"...{name[3 - _LONGEST :]}"
    cells = {
        "dataset": "  " * len(one.groups) + name,
        "samples": f"{one.samples:,}",
        "of": f"{one.dataset_samples:,}",
        "asked": _share(one.asked, total.asked),
        "planned": _share(one.drawn, total.drawn),
        "drawn": f"{one.drawn:,}",
    }
    if one.tokens is not None and total.tokens is not None:
        cells |= {"tokens": f"{one.tokens:,}", "of tokens": _share(one.tokens, total.tokens)}
    if total.slots is not None:
        cells["padding"] = "-" if one.padding is None else f"{one.padding:.2%}"
    if plan.epochs > 1:
        cells["drawn in run"] = f"{one.run_drawn:,}"
        if one.run_tokens is not None:
            cells["tokens in run"] = f"{one.run_tokens:,}"
    counts = ((one.left_out[reason], text) for reason, text in REASONS.items())
    left_out = ", ".join(f"{count:,} {text}" for count, text in counts if count)
    return cells | {"passes": f"{one.passes:.2f}", "left out": left_out}


def _rows(plans: Sequence[DatasetPlan]) -> Iterator[DatasetPlan]:
    """Yield the plan of each dataset, before them their groups, and one for those not shown."""
    from datapipe.loader.plan_report import DatasetPlan

    numbers = sorted(range(len(plans)), key=lambda number: -plans[number].drawn)
    largest = set(numbers[:_MOST])
    said: tuple[str, ...] = ()
    for number, plan in enumerate(plans):
        if number not in largest:
            continue
        pairs = zip(said, plan.groups, strict=False)
        same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        for depth in range(same, len(plan.groups)):
            *outer, name = plan.groups[: depth + 1]
            members = [each for each in plans if each.groups[: depth + 1] == (*outer, name)]
            yield DatasetPlan.join(name, tuple(outer), members)
        said = plan.groups
        yield plan
    if rest := [plan for number, plan in enumerate(plans) if number not in largest]:
        yield DatasetPlan.join(counted(len(rest), "other"), (), rest)


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0:.2%}"


def phase_lines(phases: Sequence[Phase]) -> list[str]:
    """Return a line for each phase of a schedule; none if the shares never change."""
    if len(phases) < 2:
        return []
    lines = []
    for number, phase in enumerate(phases[:_MOST]):
        when = f"from sample {phase.start:,}"
        if phase.epoch is not None:
            step = "" if phase.step is None else f", step {phase.step:,}"
            when += f" (epoch {phase.epoch}{step})"
        lines.append(f"{when}: {_shares(phase.first)}")
        if phase.first != phase.last:
            lines[-1] = f"{when}: linearly to the shares from sample {phases[number + 1].start:,}"
    if len(phases) > _MOST:
        lines.append(f"{counted(len(phases) - _MOST, 'later change')}")
    return lines


def _shares(rates: dict[str, float]) -> str:
    ordered = sorted(((rate, name) for name, rate in rates.items() if rate), reverse=True)
    said = [f"{shown(name)} {rate:.2%}" for rate, name in ordered[:_MOST_SHARES]]
    if len(ordered) > _MOST_SHARES:
        rest = sum(rate for rate, _ in ordered[_MOST_SHARES:])
        said.append(f"{counted(len(ordered) - _MOST_SHARES, 'other')} {rest:.2%}")
    return ", ".join(said)
