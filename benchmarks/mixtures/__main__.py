"""Mixtures of datasets: a thousand of them, realised shares, throughput, memory beside peers.

    python -m benchmarks.mixtures many          # 1,000 datasets of a million samples each
    python -m benchmarks.mixtures shares        # by 10,000 samples; order by ranks and workers
    python -m benchmarks.mixtures throughput    # 20 datasets against one of the same photographs
    python -m benchmarks.mixtures peers         # 8 ranks beside Megatron-Energon and Streaming
    python -m benchmarks.mixtures remove        # what the other parts have made in build/

`many`: the datasets have index and token counts but no bytes, and are opened by fresh processes,
after one that makes what is derived from all of them. They have seven distributions of lengths, so
files of seven datasets are linked into all folders. "one dataset" has samples of the same
distributions. "imports" is a process that has imported datapipe and torch. The first step is that
of 64 ranks with a pack each, the loading of compiled code included. Page cache warm.

`shares`: the largest difference between a share and its weight over all windows of 10,000 samples,
in percent of a window, in the plan's order of samples and in that of packs.

`throughput`: shards are decoded to 336x336; arrays are read as they are. Both ways take turns. With
few photographs an epoch is short, and the plan of a block of 20 datasets is made for few batches.

`peers`: 20 datasets of tiny photographs; Energon reads the same shards, Streaming its own. A rank
is a process with so many workers: threads of datapipe, processes of the others. PSS divides a page
by the processes that share it; "over imports" is what a loader needs beyond a process that has
imported its library. Memory is read after some batches. The state of a rank is resumed by new
processes on as many ranks, and on half as many with the same samples a step (Energon, which refuses
larger batches, with twice the steps).
"""

import argparse
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from benchmarks.cache.__main__ import EPOCHS
from benchmarks.common import (
    Result,
    Row,
    add_json,
    command,
    compete,
    headline,
    machine,
    natural,
    report,
    show,
    write_json,
)
from benchmarks.data import photographs
from benchmarks.loaders import describe, task_of
from benchmarks.mixtures import beside, data, opening, realised
from benchmarks.mixtures.opening import aim
from benchmarks.peers.process import ENVIRONMENT, Peer, contestant
from datapipe.index.manifest import read_manifest

Tables = dict[str, list[Row]]

PARTS = 20  # datasets of photographs
RATIO_AIM = 0.97
_SHARD_EPOCHS = 4  # of a round


def main() -> None:
    options = parse()
    if options.what == "remove":
        shutil.rmtree(data.HOME, ignore_errors=True)  # parts of photographs stay
        return
    where = machine("datapipe", "torch", "numpy", cache="warm")
    print(headline(where), flush=True)
    tables = PARTS_OF_IT[options.what](options)
    where["load at the end"] = round(os.getloadavg()[0], 1)
    write_json(options.json, {"what": options.what, "machine": where, "tables": tables})


def many(options: argparse.Namespace) -> Tables:
    """Open a thousand datasets."""
    title = f"{options.datasets:,} datasets of {options.samples:,} samples each"
    rows = show(title, opening.many(options))
    return {"many": rows, "aims": show("Aims", opening.verdicts(rows))}


def shares(options: argparse.Namespace) -> Tables:
    """Compare shares with weights, and orders with each other."""
    found = show("Shares in any 10,000 samples", realised.realised(options.draws))
    digests = show("Samples in the order of the plan", realised.orders(options.steps))
    verdicts = show("Aims", realised.verdicts(found, digests))
    return {"shares": found, "orders": digests, "aims": verdicts}


def throughput(options: argparse.Namespace) -> Tables:
    """Compare a mixture with one dataset that has the same samples."""
    photos = photographs(options.photographs)
    task = task_of(photos, options, dtype="uint8", workers=options.workers[-1])
    parts = {str(path): read_manifest(path).samples for path in data.parts(photos, PARTS)}
    mixed, one = f"mixture of {PARTS}", "one dataset"
    where = machine(cache="warm")
    tables: Tables = {}
    for arrays, epochs in ((False, _SHARD_EPOCHS), (True, EPOCHS)):
        form = "arrays" if arrays else "shards"
        options_of = {"arrays": arrays, "epochs": epochs}
        peers = [
            Peer(name, "ours.loader", f"threads; {form}", options_of | {"parts": given})
            for name, given in ((one, None), (mixed, parts))
        ]
        with ExitStack() as stack:
            entries = [contestant(peer, task, stack, where["versions"]) for peer in peers]
            results = compete(entries, options.rounds)
        title = f"{describe(photos, task)}, {form}; {task.workers} workers, {options.rounds} rounds"
        report(title, results, where=where, references=(one,), unit="img/s", path=None)
        tables[form] = list(ratios(results))
    rows = [
        aim(f"median ratio, {form}", rows[1].get("x one dataset", 0.0), RATIO_AIM, least=True)
        for form, rows in tables.items()
    ]
    return tables | {"aims": show("Aims", rows)}


def ratios(results: list[Result]) -> Iterable[Row]:
    """Yield the rates of each round, and the median ratio to the first result."""
    for result in results:
        if result.missing or not results[0].runs:
            yield {"of": result.name, "missing": result.missing}
            continue
        yield {
            "of": result.name,
            "img/s": [round(run.rate, 1) for run in result.runs],
            "x one dataset": round(result.ratio(results[0]).median, 4),
        }


def peers(options: argparse.Namespace) -> Tables:
    """Compare the ranks of a machine with those of other loaders."""
    if not ENVIRONMENT.exists():
        print("the peers are not installed; run benchmarks/peers/install.sh")
    rows = show(f"{options.ranks} ranks that read a mixture", beside.peers(options))
    return {
        "peers": rows,
        "growth": show("All ranks' memory by samples", beside.growth(rows)),
        "beside": show("Beside datapipe", beside.verdicts(rows)),
    }


PARTS_OF_IT: dict[str, Callable[[argparse.Namespace], Tables]] = {
    part.__name__: part for part in (many, shares, throughput, peers)
}


def parse() -> argparse.Namespace:
    parser = command("mixtures", __doc__)
    parts = parser.add_subparsers(dest="what", required=True)
    parts.add_parser("remove", help="remove the datasets of the other parts")

    def part(name: str, **counts: int) -> argparse.ArgumentParser:
        about = (PARTS_OF_IT[name].__doc__ or "").rstrip(".")
        formatter = argparse.ArgumentDefaultsHelpFormatter
        made = parts.add_parser(name, help=about, formatter_class=formatter)
        add_json(made)
        for option, default in counts.items():
            made.add_argument(f"--{option}", type=natural, default=default, help=HELP[option])
        return made

    several: dict[str, Any] = {"type": natural, "nargs": "+"}
    part("many", datasets=1000, samples=1_000_000, rounds=5, blocks=8, ranks=8)
    part("shares", draws=1_000_000, steps=4)
    one = part("throughput", photographs=4096, rounds=5)
    one.add_argument("--workers", type=natural, nargs=1, default=[2], help="threads")
    together = part("peers", small=100_000, ranks=8, batch=32, batches=20)
    together.add_argument("--workers", **several, default=[1, 2], help="of a rank")
    links = "how often each dataset is linked, as another one"
    together.add_argument("--links", **several, default=[1, 10], help=links)
    together.add_argument("--only", nargs="+", choices=beside.LOADERS)
    return parser.parse_args()


HELP = {
    "datasets": "number of datasets",
    "samples": "of each dataset",
    "rounds": "of each timing",
    "blocks": "of the plan, for fill and imbalance",
    "ranks": "of a machine",
    "draws": "samples of an order",
    "steps": "read of each loader",
    "photographs": "of all datasets together",
    "small": "samples of all datasets together",
    "batch": "samples of a batch of a rank",
    "batches": "before memory is read",
}


if __name__ == "__main__":
    main()
