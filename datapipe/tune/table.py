"""The result of a sweep as rows of text, for terminals, pipes and reports."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.progress import readable_size
from datapipe.tune.result import Tried, TuneResult

HEADER = (
    *("workers", "prefetch", "batches/s", "95 %", "samples/s", "P50 ms", "P90 ms", "P99 ms"),
    *("start s", "memory", "trials"),
)


def header(rows: Sequence[Tried]) -> list[str]:
    """Names of the columns; those about which nothing is known are left out of `cells`."""
    names = list(HEADER)
    if _kinds(rows):
        names.insert(2, "kind")
    if any(row.waiting is not None for row in rows):
        names.append("waiting")
    return [*names, ""]


def cells(row: Tried, rows: Sequence[Tried]) -> list[str]:
    """A row of the table, under `header(rows)`."""
    setting = row.setting
    known = [
        str(setting.num_workers),
        _or_dash(setting.prefetch_factor, "{}"),
        _or_dash(row.rate, "{:,.1f}"),
        f"{row.low:,.1f}-{row.high:,.1f}" if row.low is not None and row.high is not None else "-",
        _or_dash(row.samples, "{:,.0f}"),
        *(_or_dash(_ms(value), "{:,.1f}") for value in (row.p50, row.p90, row.p99)),
        _or_dash(row.startup, "{:.2f}"),
        readable_size(row.memory) if row.memory else "-",
        str(row.trials),
    ]
    if _kinds(rows):
        known.insert(2, ", ".join(str(value) for _, value in setting.variant) or "-")
    if any(other.waiting is not None for other in rows):
        known.append(_or_dash(row.waiting, "{:.1%}"))
    return [*known, row.out]


def verdict(result: TuneResult) -> str:
    """What to give `make_loader`, or whatever loader it is."""
    words = [f"num_workers={result.num_workers}"]
    if result.prefetch_factor is not None:
        words.append(f"prefetch_factor={result.prefetch_factor}")
    return ", ".join([*words, *(f"{name}={value!r}" for name, value in result.variant.items())])


def rate_text(result: TuneResult) -> str:
    """How fast the chosen setting is."""
    chosen = result.chosen
    said = f"{result.rate:,.1f} batches/s"
    if chosen.low is not None and chosen.high is not None:
        said += f" ({chosen.low:,.1f} to {chosen.high:,.1f})"
    if result.samples_rate is not None:
        said += f", {result.samples_rate:,.0f} samples/s"
    return said


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns to the right, the last one, of words, to the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at + 1 < len(row) else cell
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _kinds(rows: Sequence[Tried]) -> bool:
    return len({row.setting.variant for row in rows}) > 1


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
