"""Ranks of a machine that read one mixture: memory, time to the first batch, resume."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from shutil import rmtree
from typing import Any, NamedTuple

from benchmarks.common import Row
from benchmarks.mixtures.data import HOME, small, weights
from benchmarks.mixtures.ranks import Failed, Memory, Rank, Ranks, total

DATASETS = 20
_FOLLOWING = 4  # batches that are compared after a resume
_STATES = HOME / "states"


class Loader(NamedTuple):
    """A loader that takes part, of a module of `benchmarks.peers`.

    `ours` runs in this environment, one that `converts` has its own files. On fewer ranks it
    continues with larger batches if `batch_grows`, else with more of them.
    """

    module: str
    ours: bool = False
    converts: bool = False
    batch_grows: bool = True


LOADERS = {
    "datapipe": Loader("mixture_ours", ours=True),
    "energon": Loader("mixture_energon", batch_grows=False),
    "streaming": Loader("mixture_mosaic", converts=True),
}


class Ran(NamedTuple):
    """One run of all ranks: seconds of the slowest and memory of all by phase.

    `state` has the bytes of the largest state, `following` the names of the samples of some batches
    after it, by rank.
    """

    seconds: dict[str, float]
    memory: dict[str, Memory]
    processes: int
    state: int
    following: list[list[list[str]]]


def peers(
    samples: int,
    *,
    links: list[int],
    ranks: int,
    workers: list[int],
    batch: int,
    batches: int,
    only: list[str] | None = None,
) -> Iterator[Row]:
    """Yield what each loader takes of a machine.

    All datasets have `samples` together; each is read `links` times, as another one. Memory is
    looked at after some `batches` of each rank. `only` names the loaders that take part.
    """
    for link in links:
        for count in workers:
            for name, loader in LOADERS.items():
                if only is not None and name not in only:
                    continue
                print(f"{name}: {DATASETS * link} datasets, {count} workers", file=sys.stderr)
                row: Row = {
                    "loader": name,
                    "datasets": DATASETS * link,
                    "samples": samples * link,
                    "workers": count,
                }
                try:
                    task = _task(samples, link, ranks, count, batch, batches)
                    yield row | _measured(loader, task, resumed=link == links[0])
                except Failed as reason:
                    yield row | {"failed": str(reason)}


def growth(rows: list[Row]) -> Iterator[Row]:
    """Yield the bytes that a further sample takes of the machine, by loader and workers."""
    whole = [row for row in rows if "failed" not in row]
    for row in whole:
        before = [
            other
            for other in whole
            if (other["loader"], other["workers"]) == (row["loader"], row["workers"])
            and other["samples"] < row["samples"]
        ]
        if before:
            more = row["samples"] - before[0]["samples"]
            span = f"{before[0]['samples']:,} to {row['samples']:,}"
            line = {"loader": row["loader"], "workers": row["workers"], "samples": span}
            for kind in ("PSS over imports", "USS, all"):
                grown = 1e6 * (row[kind] - before[0][kind]) / more
                line[f"{kind}, bytes a sample"] = round(grown, 1)
            yield line


def _task(
    samples: int, links: int, ranks: int, workers: int, batch: int, batches: int
) -> dict[str, Any]:
    folders = small(DATASETS, samples, links=links)
    given = {
        str(folder): int(weights(DATASETS)[at % DATASETS]) for at, folder in enumerate(folders)
    }
    return {
        "weights": given,
        "home": str(folders[0].parent),
        "world": ranks,
        "workers": workers,
        "batch": batch,
        "batches": batches,
        "following": _FOLLOWING,
        "states": str(_STATES),
    }


def _measured(loader: Loader, task: dict[str, Any], *, resumed: bool) -> Row:
    rmtree(_STATES, ignore_errors=True)
    world = task["world"]
    if loader.converts:
        _run(loader, task, convert=True)
    else:
        _run(loader, task | {"batches": 1})  # makes what is derived from the datasets
    ran = _run(loader, task)
    imports, end = ran.memory["imports"], ran.memory["batches"]
    grown = end.less(imports)
    row: Row = {
        "processes": ran.processes,
        "open, s": round(ran.seconds["open"], 2),
        "first batch, s": round(ran.seconds["open"] + ran.seconds["first batch"], 2),
        "PSS, all": round(end.pss / 1e6, 1),
        "USS, all": round(end.uss / 1e6, 1),
        "PSS over imports": round(grown.pss / 1e6, 1),
        "PSS over imports, a rank": round(grown.pss / 1e6 / world, 1),
        "state, bytes": ran.state,
    }
    if not resumed:
        return row
    more = "batch" if loader.batch_grows else "following"
    half = task | {"world": world // 2, more: 2 * task[more]}
    for name, again in (("", task), (f", {world // 2} ranks", half)):
        try:
            back = _run(loader, again, resume=True)
        except Failed as reason:
            row[f"resumed{name}"] = f"refused: {reason}"[:90]
            continue
        row[f"resumed{name}"] = same(ran.following, back.following)
        row[f"first batch{name} resumed, s"] = round(
            back.seconds["open"] + back.seconds["first batch"], 2
        )
    return row


def _run(loader: Loader, task: dict[str, Any], **options: Any) -> Ran:
    convert = options.get("convert", False)
    world = 1 if convert else task["world"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"OMP_NUM_THREADS": "1"}
    if not loader.ours:
        environment |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank in range(world):
        own = {} if loader.ours else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        given, variables = {**task, "rank": rank, **options}, environment | own
        name, module = f"{loader.module}-{rank}", loader.module
        started.append(Rank(name, module, given, ours=loader.ours, environment=variables))
    seconds, memory, processes, state = {}, {}, 0, 0
    following: list[list[list[str]]] = []
    with Ranks(started) as group:
        for phase, facts in group.phases():
            seconds[phase] = max(each["seconds"] for each in facts)
            seen = group.look()
            memory[phase] = total(seen)
            if phase == "batches":
                processes = sum(each.processes for each in seen)
                state = max(each["state"] for each in facts)
            if phase == "end" and not convert:
                following = [each["following"] for each in facts]
    return Ran(seconds, memory, processes, state, following)


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
    left = list(before)
    for name in after:
        if name in left:
            left.remove(name)
    return f"{len(left)} of {len(before)} samples differ"


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
