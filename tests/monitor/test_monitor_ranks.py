"""A monitor where ranks wait for each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, time
import torch
import torch.distributed as dist
import datapipe

rank = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
monitor = datapipe.Monitor(warmup=2)
for _ in monitor(range(30)):
    with monitor.step():
        time.sleep(0.04 * rank)  # the second rank comes late to every exchange
        dist.all_reduce(torch.ones(4))
verdict = monitor.verdict
print(json.dumps({"kind": verdict.kind, "sentence": verdict.sentence}))
dist.destroy_process_group()
"""


@pytest.mark.campaign
def test_a_rank_that_waits_for_another_is_communication_bound(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(tmp_path / "group")],
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        waiting, late = (json.loads(process.communicate(timeout=120)[0]) for process in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    line = 1 + PROGRAM.splitlines().index("        dist.all_reduce(torch.ones(4))")
    assert waiting["kind"] == "communication"
    assert f"all_reduce at {program}:{line}" in waiting["sentence"]
    # The late one waits for nobody: its step is what takes the time.
    assert late["kind"] == "compute"
