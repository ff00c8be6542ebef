"""Monitors of ranks that exchange data, and of ranks that wait for each other."""

import json
import re
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import datapipe

rank = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)


def layers(width, count):
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))


def watch(train, batches=range(24), late=0.0):
    monitor = datapipe.Monitor(warmup=2)
    for _ in monitor(batches):
        with monitor.step():
            time.sleep(late * rank)
            train()
    dist.barrier()
    report = monitor.report()
    dist.barrier()
    return {"kind": report.verdict.kind, "sentence": report.verdict.sentence,
            "actions": report.verdict.actions, "exchange": report.sampled.exchange}


def trainer(model, rows, width):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(rows, width)

    def train():
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return train


def ddp(width, count, rows, **options):
    return trainer(DistributedDataParallel(layers(width, count), **options), rows, width)


def slow_batches():
    for number in range(24):
        time.sleep(0.1 * rank)
        yield number


def fsdp():
    sharded = layers(1200, 2)
    mesh = init_device_mesh("cpu", (2,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    return trainer(fully_shard(sharded, mesh=mesh), 1, 1200)


loops = {
    "ddp": lambda: watch(ddp(32, 150, 2, bucket_cap_mb=0.0001)),
    "fsdp": lambda: watch(fsdp()),
    "late": lambda: watch(ddp(32, 2, 2), late=0.1),
    "data": lambda: watch(ddp(32, 2, 2), slow_batches()),
}
print(json.dumps({name: loops[name]() for name in sys.argv[3:]}))
dist.destroy_process_group()
"""


pytestmark = pytest.mark.campaign


@pytest.fixture
def watched(tmp_path):
    """Runs loops on two ranks, which a repeated test measures again; each rank's verdicts."""

    def run(*loops):
        command = [sys.executable, "-c", PROGRAM]
        pipe = {"stdout": subprocess.PIPE}
        ranks = [
            subprocess.Popen([*command, str(rank), str(tmp_path / "group"), *loops], **pipe)
            for rank in range(2)
        ]
        try:
            return [json.loads(rank.communicate(timeout=400)[0]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()

    return run


@pytest.mark.parametrize("loop", ["ddp", "fsdp"])
def test_exchange_is_seen_though_python_does_not_call_it(watched, loop):
    for rank in watched(loop):
        assert rank[loop]["kind"] == "communication", rank[loop]["sentence"]
        remedies = " ".join(rank[loop]["actions"])
        assert "no_sync" in remedies
        assert "bucket_cap_mb" in remedies
        assert "compress" in remedies


def test_a_rank_whose_steps_take_longer_is_named_on_all_ranks(watched):
    waiting, late = (rank["late"] for rank in watched("late"))
    assert waiting["kind"] == late["kind"] == "straggler"
    took = re.search(r"waits for rank 1, whose steps take ([\d.]+) ms longer", waiting["sentence"])
    assert took is not None, waiting["sentence"]
    assert float(took[1]) >= 30  # of 100, as the waiting rank may be held up too
    assert "the other ranks wait for this one (rank 1)" in late["sentence"]


def test_a_rank_that_gets_its_batches_late_is_named_with_the_cause(watched):
    waiting, late = (rank["data"] for rank in watched("data"))
    assert waiting["kind"] == "straggler"
    assert "waits for rank 1, which gets its batches" in waiting["sentence"]
    assert late["kind"] == "data"
