"""Runs of the reference model, in processes of their own."""

import json
import os
import subprocess
import sys
from typing import Any


def train(shards: object, options: dict[str, Any], *, processes: int = 1) -> dict[str, Any]:
    """Train the reference model once, and return its `Report` as a dict.

    `options` of `examples.vlm.train` are by name, with True for those without a value. Several
    `processes` are started by torchrun. A `RuntimeError` has the reason in its last line.
    """
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [str(processes), "-m"]
    command += ["examples.vlm.train", str(shards), "--json", "-"]
    for name, value in options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    threads = max(1, (os.cpu_count() or 1) // processes)
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if processes > 1 else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error:" in line or "train:" in line]
        last = said[0] if said else (done.stderr.splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}\n{last}")
    report: dict[str, Any] = json.loads(done.stdout)["report"]
    return report
