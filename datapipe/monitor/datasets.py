"""Samples and tokens of each dataset of a mixture, counted from the batches of a loop.

Lengths of samples on a GPU are copied without waiting, and counted once the copy is done.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

from datapipe.diagnosis.loop_figures import DatasetShare

_NOT_VALID = -1  # length of a sample that does not count


class DatasetCounter:
    """Counter of samples and tokens by dataset. For the thread that runs the loop."""

    def __init__(self) -> None:
        self.counts = False  # whether the loader's data are a mixture; only then `add` is called
        self._shares: Callable[[], Mapping[str, float]] = dict
        self._is_compared = True
        self._samples: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        # names of a batch, lengths of its samples in the host's memory, and when they are there
        self._pending: deque[tuple[list[str], Any, Any]] = deque()

    def begin(self, loader: Any) -> None:
        shares = getattr(getattr(loader, "plan", None), "shares", None)
        self.counts = False
        if callable(shares) and shares():  # empty for a single folder
            self.counts, self._shares = True, shares
            self._is_compared = not getattr(loader.plan, "shares_change", False)

    def add(self, batch: Any) -> None:
        """Note a batch with "dataset"; waits for no device."""
        if not isinstance(batch, Mapping) or "dataset" not in batch:
            return
        names, lengths = batch["dataset"], _lengths(batch)
        event = None
        if lengths is not None and lengths.is_cuda:
            # To page-locked memory, so the host does not wait.
            lengths = lengths.to("cpu", non_blocking=True)
            event = sys.modules["torch"].cuda.Event()
            event.record()
        self._pending.append((names, lengths, event))

    def read(self) -> None:
        """Count the batches whose lengths are there."""
        while self._pending:
            names, lengths, event = self._pending[0]
            if event is not None and not event.query():
                return
            self._pending.popleft()
            if lengths is None:
                self._samples.update(filter(None, names))
                continue
            for name, length in zip(names, lengths.tolist(), strict=True):
                if name and length != _NOT_VALID:  # empty slots have no name
                    self._samples[name] += 1
                    self._tokens[name] += length

    def figures(self) -> tuple[DatasetShare, ...]:
        """Return the counts so far beside the plan's shares; empty if there is no mixture."""
        samples, tokens, planned = dict(self._samples), dict(self._tokens), self._shares()
        total = sum(samples.values())
        if not total:
            return ()
        return tuple(
            DatasetShare(
                name=name,
                samples=samples.get(name, 0),
                tokens=tokens.get(name, 0),
                share=samples.get(name, 0) / total,
                planned=share,
                # Packs are shuffled inside blocks, and ranks take some of them at random.
                chance=sqrt(share * (1 - share) / total),
                is_compared=self._is_compared,
            )
            for name, share in planned.items()
        )


def _lengths(batch: Mapping[str, Any]) -> Any:
    """Return the tokens of each sample, a tensor where the batch is; None if nothing is known."""
    count, valid = len(batch["dataset"]), batch.get("valid")
    if "cu_seq_lens_q" in batch:
        # Constant shapes have segments of padding behind the samples.
        lengths = batch["cu_seq_lens_q"][: count + 1].diff()
    elif "attention_mask" in batch:
        # Preference pairs have two rows each: all chosen answers, then all rejected ones.
        lengths = batch["attention_mask"].sum(1).view(-1, count).sum(0)
    elif valid is not None:
        lengths = valid.new_zeros(count, dtype=sys.modules["torch"].int64)
    else:
        return None
    return lengths if valid is None else lengths.where(valid, _NOT_VALID)
