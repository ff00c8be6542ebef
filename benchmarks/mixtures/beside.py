"""Ranks of a machine that read one mixture: memory, time to the first batch, resume."""

import argparse
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, product
from shutil import rmtree
from typing import Any

from benchmarks.common import Absent, Row, chosen
from benchmarks.mixtures.data import HOME, small, weighted
from benchmarks.mixtures.ranks import Ended, Rank, Ranks

DATASETS = 20
_FOLLOWING = 4  # batches that are compared after a resume
_STATES = HOME / "states"


LOADERS = ("datapipe", "energon", "streaming")  # functions of `benchmarks.peers.mixture`


def peers(options: argparse.Namespace) -> Iterator[Row]:
    """Yield what each loader that `--only` names takes of a machine.

    All datasets have `--small` samples together; each is read `--links` times, as another one.
    Memory is looked at after some `--batches` of each rank.
    """
    ways = product(options.links, options.workers, chosen(LOADERS, options.only))
    for link, count, name in ways:
        datasets = DATASETS * link
        print(f"{name}: {datasets} datasets, {count} workers", file=sys.stderr)
        row: Row = {"loader": name, "datasets": datasets}
        row |= {"samples": options.small * link, "workers": count}
        try:
            task = _task(options, link, count)
            yield row | _measured(name, task, resumed=link == options.links[0])
        except Absent as reason:
            yield row | {"failed": str(reason)}


def growth(rows: list[Row]) -> Iterator[Row]:
    """Yield the bytes that a further sample takes of the machine, by loader and workers."""
    whole = [row for row in rows if "failed" not in row]
    for row in whole:
        alike = [one for one in whole if all(one[x] == row[x] for x in ("loader", "workers"))]
        before = [other for other in alike if other["samples"] < row["samples"]]
        if before:
            more = row["samples"] - before[0]["samples"]
            span = f"{before[0]['samples']:,} to {row['samples']:,}"
            line = {"loader": row["loader"], "workers": row["workers"], "samples": span}
            for kind in ("PSS over imports", "USS, all"):
                grown = 1e6 * (row[kind] - before[0][kind]) / more
                line[f"{kind}, bytes a sample"] = round(grown, 1)
            yield line


def _task(options: argparse.Namespace, links: int, workers: int) -> dict[str, Any]:
    folders = small(DATASETS, options.small, links=links)
    own = weighted(folders[:DATASETS]).values()
    return {
        "weights": dict(zip(map(str, folders), cycle(own), strict=False)),
        "home": str(folders[0].parent),
        "world": options.ranks,
        "workers": workers,
        "batch": options.batch,
        "batches": options.batches,
        "following": _FOLLOWING,
        "states": str(_STATES),
    }


def _measured(loader: str, task: dict[str, Any], *, resumed: bool) -> Row:
    rmtree(_STATES, ignore_errors=True)
    world = task["world"]
    if loader == "streaming":  # which has files of its own
        _run(loader, task, convert=True)
    else:
        _run(loader, task | {"batches": 1})  # makes what is derived from the datasets
    ran = _run(loader, task)
    batches = ran["batches"]
    end = batches.memory
    grown = end.less(ran["imports"].memory)
    row: Row = {
        "processes": sum(each.processes for each in batches.seen),
        "open, s": round(ran["open"].seconds, 2),
        "first batch, s": _to_first_batch(ran),
        "PSS, all": round(end.pss / 1e6, 1),
        "USS, all": round(end.uss / 1e6, 1),
        "PSS over imports": round(grown.pss / 1e6, 1),
        "PSS over imports, a rank": round(grown.pss / 1e6 / world, 1),
        "state, bytes": max(each["state"] for each in batches.facts),
    }
    if not resumed:
        return row
    # On fewer ranks Energon refuses larger batches, and reads more of them.
    more = "following" if loader == "energon" else "batch"
    half = task | {"world": world // 2, more: 2 * task[more]}
    for name, later in (("", task), (f", {world // 2} ranks", half)):
        try:
            back = _run(loader, later, resume=True)
        except Absent as reason:
            row[f"resumed{name}"] = f"refused: {reason}"[:90]
            continue
        first, again = ([each["following"] for each in one["end"].facts] for one in (ran, back))
        row[f"resumed{name}"] = same(first, again)
        row[f"first batch{name} resumed, s"] = _to_first_batch(back)
    return row


def _to_first_batch(ran: dict[str, Ended]) -> float:
    return round(ran["open"].seconds + ran["first batch"].seconds, 2)


def _run(loader: str, task: dict[str, Any], **options: Any) -> dict[str, Ended]:
    """Run all ranks, or one that converts; return the phases by name."""
    world = 1 if "convert" in options else task["world"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment, ours = {"OMP_NUM_THREADS": "1"}, loader == "datapipe"
    if not ours:
        environment |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank in range(world):
        own = {} if ours else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        given, variables = {**task, "rank": rank, **options}, environment | own
        name, function = f"mixture-{loader}-{rank}", f"mixture.{loader}"
        started.append(Rank(name, function, given, ours=ours, environment=variables))
    with Ranks(started) as group:
        return group.follow()


def same(first: list[list[list[str]]], again: list[list[list[str]]]) -> str:
    """Compare the samples of some batches of all ranks with those after a resume.

    Examples:
        >>> same([[["a"]], [["b"]]], [[["a"]], [["b"]]])
        'exact'
        >>> same([[["a"]], [["b"]]], [[["b", "a"]]])
        'the same samples'
        >>> same([[["a"]], [["b"]]], [[["a", "c"]]])
        '1 of 2 samples differ'
    """
    if first == again:
        return "exact"
    before, after = (
        sorted(name for rank in ranks for batch in rank for name in batch)
        for ranks in (first, again)
    )
    if before == after:
        return "the same samples"
    left = Counter(before) - Counter(after)
    return f"{left.total()} of {len(before)} samples differ"


def verdicts(rows: list[Row]) -> list[Row]:
    """Compare the loaders by what the plan takes of the machine."""
    whole = [row for row in rows if "failed" not in row]
    own = {(r["workers"], r["samples"]): r for r in whole if r["loader"] == "datapipe"}
    found = []
    for row in whole:
        ours = own.get((row["workers"], row["samples"]))
        if ours is not None and row is not ours:
            line = {name: row[name] for name in ("loader", "workers", "samples")}
            for name in ("PSS over imports", "PSS, all", "USS, all"):
                line[f"{name}, x datapipe"] = round(row[name] / max(ours[name], 1), 2)
            found.append(line)
    return found
