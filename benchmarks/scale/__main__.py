"""A billion samples and 64 to 1,024 ranks: opening, first step, planning, requests, a restart.

    python -m benchmarks.scale --json benchmarks/results/scale.json

The dataset has 1,000,000,000 samples in 100,000 shards, with an image and text of 10 to 8,000
tokens each. It takes 16 GB in `build/scale` and is removed afterwards, unless --keep is given. The
first process that opens it selects the samples that fit, once, and counts as preparation.

`open`: a fresh process, from `make_loader` for packs of 8,192 tokens to the first step of 64 ranks,
with a page cache that is warm or dropped; then 8 processes at once, as on a machine that restarts.
Memory in MB: "over imports" is that of a rank without importing datapipe and torch. PSS divides a
page by the processes that share it. "from disk" is read by all of them.

`columns`: CPU and wall time to read the sizes of a block's 65,536 samples, for each column.

`planning`: share of a core that a rank spends on the plan at 200 samples/s, by the ranks that share
a folder of planned blocks. Lengths are in memory.

`requests`: requests to storage at 200 samples/s of each rank, counted and not timed.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.billion import SAMPLES
from benchmarks.common import Row, Spread, command, headline, machine, parse_args, show, write_json
from benchmarks.data import drop_cache
from benchmarks.mixtures.data import CAPACITY, IMAGE_TOKENS, text_spec
from benchmarks.mixtures.opening import Opened, aim, opened, timings
from benchmarks.mixtures.ranks import megabytes
from benchmarks.ranks.plan import planning
from benchmarks.scale.data import dataset, planned_from
from benchmarks.scale.requests import OF_MACHINE, requests
from datapipe.index.dataset import open_dataset
from datapipe.index.files.random_read import read_values
from datapipe.index.tokens.columns import open_tokens
from datapipe.plan.options import BLOCK
from datapipe.text.encode import TextEncoder

WORLDS = [64, 256, 1024]
OPEN_AIM, STEP_AIM, MEMORY_AIM, PLANNING_AIM = 2.0, 5.0, 200, 1.0


def opening(options: argparse.Namespace) -> Iterator[Row]:
    """Time and memory from `make_loader` to the first step."""
    folder = dataset(options.home, options.samples)
    print("selecting samples, once", flush=True)
    _opened(folder, 1)
    files = planned_from(folder)
    for cache, ranks in product(("warm", "cold"), sorted({1, options.ranks})):
        runs = []
        for number in range(options.rounds):
            if cache == "cold":
                drop_cache(files)
            elif not number:
                _opened(folder, ranks)
            runs.append(_opened(folder, ranks))
        imports, open, step = runs[-1].ended.values()
        after, grown = step.memory, step.memory.less(imports.memory)
        yield {
            "page cache": cache,
            "processes": ranks,
            **timings(runs),
            "RSS of a rank, peak": megabytes(runs[-1].peak_rss),
            "USS a rank over imports": megabytes(grown.uss / ranks),
            "PSS a rank over imports": megabytes(grown.pss / ranks),
            "PSS a rank": megabytes(after.pss / ranks),
            "from disk to open": megabytes(open.from_disk),
            "from disk for the step": megabytes(step.from_disk),
        }


def _opened(folder: Path, ranks: int) -> Opened:
    return opened({str(folder): 1}, ranks, blocks=0, until="first step")


def columns(options: argparse.Namespace) -> Iterator[Row]:
    """Time to read what a block needs of each column, new samples in each round."""
    folder = dataset(options.home, options.samples)
    opened = open_dataset(folder)
    tokens = open_tokens(opened.home, opened.manifest, TextEncoder(text_spec()).digest)
    assert tokens is not None
    files = planned_from(folder)
    for name, column, width in (
        ("text_tokens", tokens.text_tokens, 1),
        ("label_tokens", tokens.label_tokens, 1),
        ("sample_image", opened.columns.sample_image, 2),
    ):
        took: dict[str, list[float]] = {}
        for number in range(options.rounds):
            chosen = np.random.default_rng(number).integers(0, options.samples, BLOCK)
            drop_cache(files)
            for cache in ("cold", "warm"):
                began, used = time.perf_counter(), time.process_time()
                read_values(column, chosen, width)
                took.setdefault(f"{cache}, s", []).append(time.perf_counter() - began)
                took.setdefault(f"CPU {cache}, s", []).append(time.process_time() - used)
        yield {"column": name, **{what: str(Spread.of(each)) for what, each in took.items()}}


def planned(options: argparse.Namespace) -> Iterator[Row]:
    for world in WORLDS:
        for row in planning(CAPACITY, IMAGE_TOKENS, world):
            yield {"ranks": world, **row}


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "open": opening,
    "columns": columns,
    "planning": planned,
    "requests": lambda options: requests(options.samples, WORLDS),
}


def verdicts(tables: dict[str, list[Row]]) -> Iterator[Row]:
    by_cache = {row["page cache"]: row for row in tables.get("open", []) if row["processes"] == 1}
    for cache, row in by_cache.items():
        yield aim(f"open, page cache {cache}, s", row["open, median"], OPEN_AIM)
        yield aim(f"first step, page cache {cache}, s", row["first step, median"], STEP_AIM)
    for row in tables.get("open", []):
        name = f"MB over imports, of {row['processes']}, page cache {row['page cache']}"
        yield aim(name, row["PSS a rank over imports"], MEMORY_AIM)
    for row in tables.get("planning", []):
        if row["ranks"] == WORLDS[-1]:
            name = f"planning, shared by {row['ranks that share it']}, % of a core"
            yield aim(name, row["of a core a rank, %"], PLANNING_AIM)


def main() -> None:
    parser = command("scale", __doc__)
    add = parser.add_argument
    add("--samples", type=int, default=SAMPLES, help="of the dataset (default: %(default)s)")
    add("--ranks", type=int, default=OF_MACHINE, help="processes at once (default: %(default)s)")
    add("--rounds", type=int, default=3, help="of each timing (default: %(default)s)")
    add("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections alone")
    add("--home", type=Path, default=Path("build/scale"), help="folder (default: %(default)s)")
    add("--keep", action="store_true", help="leave the dataset where it is")
    options = parse_args(parser)
    where = machine("datapipe", "torch", "numpy", cache="as in the tables")
    print(headline(where), flush=True)
    tables: dict[str, list[Row]] = {}
    try:
        for name in options.only:
            print(f"--- {name}", file=sys.stderr, flush=True)
            tables[name] = show(name, SECTIONS[name](options))
    finally:
        if not options.keep:
            shutil.rmtree(options.home, ignore_errors=True)
    tables["aims"] = show("aims", verdicts(tables))
    where["load at the end"] = round(os.getloadavg()[0], 1)
    write_json(options.json, {"machine": where, "tables": tables})


if __name__ == "__main__":
    main()
