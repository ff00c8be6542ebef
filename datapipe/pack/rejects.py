"""Counts of rejects, and the number of them that ends a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.options import MaxRejects
from datapipe.report.table import counted

_EXAMPLES = 10  # in a report
_NAMED = 5  # in an error


@dataclass(kw_only=True)
class RejectCounts:
    """Rejects of a pack or conversion."""

    number: int = 0  # rejects so far, those of interrupted runs included
    # How often each reason was met in this run
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[Reject] = field(default_factory=list)  # the first rejects of this run
    dry_run: bool = False  # no shard is written

    def add(self, reject: Reject) -> None:
        self.number += 1
        self.reasons[f"{reject.error}: {reject.reason}"] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(reject)

    def check(self, limit: MaxRejects, inputs: int, *, at_end: bool = False) -> None:
        """Raise a PackError if the number exceeds the limit, which may be a share of `inputs`."""
        if not limit.exceeded(self.number, inputs, at_end=at_end):
            return
        examples = "".join(
            f"\n  {reject.source}: {reject.file + ': ' if reject.file else ''}{reject.reason}"
            for reject in self.examples[:_NAMED]
        )
        remedy = "Mend" if self.dry_run else "Finished shards are kept: mend"
        verb = "was" if self.number == 1 else "were"
        raise PackError(
            f"{self.number:,} of {counted(inputs, 'input')} {verb} rejected, more than "
            f"--max-rejects {limit} allows; for example{examples}\n{remedy} the input, or allow "
            "more, and run the same command again."
        )
