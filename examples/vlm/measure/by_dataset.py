"""Loss, labels, tokens and samples of each dataset of a mixture.

Losses of tokens are summed by the dataset of their segment, so there is no second forward pass.
Sums stay on the device until they are read: once for each line of the log.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from examples.vlm.data.batches import IGNORE, Batch, lengths_of, send
from examples.vlm.parallel.mesh import whole_loss
from examples.vlm.parallel.ranks import Ranks

MOST = 20  # datasets in a table of the log; `--json` has all


class DatasetFigures(NamedTuple):
    """Figures of a dataset over some steps of all ranks, without repeats at the end of an epoch."""

    name: str
    loss: float | None  # mean over its labels, in nats
    labels: int
    tokens: int
    samples: int
    share: float  # of all samples, as they came
    planned: float  # of all samples, as planned


class DatasetSums:
    """Sums by dataset, on the device; `shares()` are the plan's, by name, equal on every rank."""

    def __init__(self, shares: Callable[[], Mapping[str, float]], ranks: Ranks) -> None:
        self._shares, self._ranks = shares, ranks
        self._names = list(shares())
        # The last column is of what counts nowhere: padding, and samples that are not valid.
        self._columns = {name: number for number, name in enumerate([*self._names, ""])}
        shape = (4, len(self._columns))  # losses, labels, tokens, samples
        self._sums = torch.zeros(shape, dtype=torch.float64, device=ranks.device)
        self._read = torch.zeros(shape, dtype=torch.float64)

    def add(self, batch: Batch, targets: Tensor, losses: Tensor) -> None:
        """Add a batch with `dataset` and `valid`; waits for no device.

        Targets, [T], come from `make_inputs`. Losses come from the model; under context parallelism
        they are those of this rank alone, [T / ranks].
        """
        names, device, none = batch["dataset"], targets.device, len(self._names)
        lengths = lengths_of(batch, len(names))
        numbers = send(torch.tensor([self._columns[name] for name in names]), device)
        numbers = torch.where(batch["valid"], numbers, none)
        if "cu_seq_lens_q" in batch:
            ends = batch["cu_seq_lens_q"][1 : len(names) + 1].contiguous()
            indices = torch.arange(len(targets), dtype=ends.dtype, device=device)
            owners = torch.searchsorted(ends, indices, right=True)
        else:
            owners = torch.arange(len(targets), device=device) // (len(targets) // len(names))
        # Behind the samples of a pack of constant shape there is padding.
        of_tokens = torch.cat([numbers, numbers.new_full((1,), none)])[owners]
        start = 0
        if self._ranks.mesh is not None:
            start = self._ranks.mesh["cp"].get_local_rank() * len(losses)
        own = of_tokens[start : start + len(losses)]
        for row, columns, values in (
            (0, own, losses.detach()),
            (1, of_tokens, targets != IGNORE),
            (2, numbers, lengths),
            (3, numbers, torch.ones_like(numbers)),
        ):
            self._sums[row].index_add_(0, columns, values.double())

    def since_last(self) -> tuple[DatasetFigures, ...]:
        """Return the figures since the last call; waits for the device, and all ranks must call."""
        sums, self._sums = self._sums, torch.zeros_like(self._sums)
        whole_loss(sums[0], self._ranks)
        found = self._ranks.total(sums).cpu()
        self._read += found
        return self._figures(found)

    def of_run(self) -> tuple[DatasetFigures, ...]:
        """Return the figures of all steps; waits for the device, and all ranks must call."""
        self.since_last()
        return self._figures(self._read)

    def _figures(self, sums: Tensor) -> tuple[DatasetFigures, ...]:
        shares, rows = self._shares(), sums[:, :-1].T.tolist()
        total = max(1.0, sum(samples for *_, samples in rows))
        return tuple(
            DatasetFigures(
                name=name,
                loss=loss / labels if labels else None,
                labels=int(labels),
                tokens=int(tokens),
                samples=int(samples),
                share=samples / total,
                planned=shares[name],
            )
            for name, (loss, labels, tokens, samples) in zip(self._names, rows, strict=True)
        )


def dataset_table(figures: tuple[DatasetFigures, ...]) -> str:
    """Return a line for each dataset, those with the largest shares in the plan first."""
    found = sorted(figures, key=lambda each: -each.planned)
    shown = found[:MOST]
    width = max(len(each.name) for each in shown)
    lines = []
    for each in shown:
        loss = "-" if each.loss is None else f"{each.loss:.3f}"
        lines.append(
            f"    {each.name:{width}}  loss {loss:>6}  {each.labels:9,} labels  "
            f"{each.tokens:11,} tokens  {each.share:6.1%} of samples (plan {each.planned:.1%})"
        )
    if len(found) > MOST:
        lines.append(f"    and {len(found) - MOST:,} more datasets")
    return "\n".join(lines)
