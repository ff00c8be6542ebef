"""Tokens in the commands: encoders from options, counts, and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.cli.output import shown
from datapipe.errors import PlanError
from datapipe.text.spec import TextSpec

if TYPE_CHECKING:
    from datapipe.index.tokens.columns import Spread, TokenColumns, TokenStats
    from datapipe.text.encode import TextEncoder

_SHOWN_FAILURES = 5


def text_spec(tokenizer: str | None = None, **options: Any) -> TextSpec | None:
    """Make the text options of a command; None is not given, and keeps the default."""
    given = {name: value for name, value in options.items() if value is not None}
    if tokenizer is None:
        for name in given:
            option = f"--{name.replace('_', '-')}"
            raise PlanError(f"{option} needs --tokenizer; give a tokenizer.json")
        return None
    return TextSpec(tokenizer=tokenizer, **given)


def text_encoder(tokenizer: str | None, template: str | None) -> TextEncoder | None:
    spec = text_spec(tokenizer, template=template)
    if spec is None:
        return None
    from datapipe.text.encode import TextEncoder

    return TextEncoder(spec)


def count(
    folder: str | Path, encoder: TextEncoder, workers: int | None = None, **engine: Any
) -> tuple[TokenColumns, TokenStats]:
    """Count the tokens of a dataset where that was not done, and summarise them.

    `engine` are arguments of `EngineSpec`.
    """
    from datapipe.index.dataset import open_dataset
    from datapipe.index.tokens.columns import token_stats
    from datapipe.loader.schedule.token_counts import count_tokens

    columns = count_tokens(open_dataset(folder), encoder, workers=workers, **engine)
    return columns, token_stats(columns)


def token_rows(stats: TokenStats) -> dict[str, str]:
    rows = {"text tokens": _spread(stats.text), "label tokens": _spread(stats.labels)}
    if stats.failed:
        rows["failed texts"] = f"{stats.failed:,}"
    return rows


def print_failures(columns: TokenColumns) -> None:
    """Print the first texts that cannot be used, and the file that lists all of them."""
    if not columns.failed:
        return
    for failure in columns.failures()[:_SHOWN_FAILURES]:
        member = f"{failure['member']}: " if "member" in failure else ""
        print(shown(f"failed {failure['key']}: {member}{failure['reason']}"))
    print(f"all failures: {columns.folder / 'failures.jsonl'}")


def _spread(spread: Spread) -> str:
    return (
        f"{spread.total:,} (mean {spread.mean:,.1f}, median {spread.p50:,}, 90 % {spread.p90:,}, "
        f"99 % {spread.p99:,}, most {spread.most:,})"
    )
