"""Figures that were aimed for on a GPU, and what was measured.

    python -m benchmarks.gpu.aims build/gpu

prints those of all results in a folder.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.common import command


class Bar(NamedTuple):
    """A figure that was aimed for: `wanted` is the most that `value` may be, or the least."""

    name: str
    value: float | None
    wanted: float
    most: bool = True

    @property
    def reached(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.wanted if self.most else self.value >= self.wanted

    def __str__(self) -> str:
        aim = f"{'at most' if self.most else 'at least'} {self.wanted:,g}"
        if self.value is None:
            return f"{self.name}: not measured ({aim})"
        return f"{self.name}: {self.value:,.4g} ({aim}: {'reached' if self.reached else 'MISSED'})"


def describe(device: torch.device) -> str:
    if device.type == "cpu":
        return "no GPU (a rehearsal)"
    return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"


def find_device(*, rehearse: bool) -> torch.device:
    """Return the GPU, or the CPU for a rehearsal; end, after a word about it, if there is none."""
    if rehearse:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    print(
        f"torch {torch.__version__} finds no CUDA device here: nothing was measured. Run this on a "
        "machine with a GPU, or see that it runs with --rehearse."
    )
    sys.exit()


def as_json(bars: Sequence[Bar], *, rehearsal: bool) -> dict[str, Any]:
    """Return the bars for a file of results; a rehearsal has none."""
    return {"rehearsal": rehearsal, "aims": [] if rehearsal else [bar._asdict() for bar in bars]}


def show(bars: Sequence[Bar], *, rehearsal: bool) -> None:
    if rehearsal:
        print("\nAims are for a GPU: no figure here is compared with them.")
    else:
        print("", *bars, sep="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command("gpu.aims", __doc__)
    parser.add_argument("folder", type=Path, help="of the results")
    folder = parser.parse_args(arguments).folder
    found = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        bars = content.get("aims", ()) if isinstance(content, dict) else ()
        found += [f"{path.name}: {Bar(**bar)}" for bar in bars]
    print(*found or [f"{folder}: no results with figures that were aimed for"], sep="\n")


if __name__ == "__main__":
    main()
