"""One rank, with the small model.

    python -m tests.examples.rank_worker jobs JOBS RESULTS    runs jobs one after another
    python -m tests.examples.rank_worker main OPTIONS         is `examples.vlm.train`

A job has a name and options of the command line; `--lr=1@0` is of rank 0 alone. Its result are
losses and figures of ranks, or the error that it ended with. With HANG=1, rank 1 hangs when it has
taken the batches of five steps.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from examples.vlm import loop
from examples.vlm import train as program
from examples.vlm.model.config import MODELS
from examples.vlm.options import parse
from examples.vlm.parallel.ranks import Ranks, joined

from .vlm_runs import SMALL


def jobs(asked: str, results: str) -> None:
    found = {}
    with joined("cpu", 150) as ranks:
        for name, arguments in json.loads(Path(asked).read_text()).items():
            found[name] = run(arguments, ranks)
    Path(f"{results}.{os.environ['RANK']}").write_text(json.dumps(found))


def run(arguments: list[str], ranks: Ranks) -> dict[str, Any]:
    line = [text for text in arguments if "@" not in text]
    line += [text[:-2] for text in arguments if text.endswith(f"@{ranks.rank}")]
    try:
        report = program.run(parse(line, ""), ranks)
    except ValueError as error:
        return {"error": str(error)}
    return {
        "losses": report.losses,
        "norms": [rank.norm for rank in report.ranks],
        "tokens": round(report.tokens_per_s * report.seconds),
        "parameters": report.memory["parameters"],
        "evaluations": [n for each in report.evaluations for n in (each.loss, each.labels)],
    }


def hang() -> None:
    taken = loop.groups_of

    def some(*arguments: Any, **options: Any) -> Iterator[Any]:
        for number, group in enumerate(taken(*arguments, **options)):
            if number == 5:
                time.sleep(600)
            yield group

    loop.groups_of = some  # type: ignore[assignment]


if __name__ == "__main__":
    torch.set_num_threads(1)
    MODELS["tiny"] = SMALL
    if os.environ.get("HANG") == os.environ["RANK"]:
        hang()
    if sys.argv[1] == "jobs":
        jobs(*sys.argv[2:])
    else:
        program.main(sys.argv[2:])
