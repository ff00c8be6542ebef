"""Ranks that take the same samples: one decodes, and all get its batches, errors and states."""

import json

import pytest
from torch.distributed.device_mesh import init_device_mesh

import datapipe
from datapipe import PlanError, WorkerSpec
from tests.fake_ranks import fake_rank

from .test_ranks import run_ranks

RANK = """
import hashlib, json, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import datapipe

good, damaged, store, rank, *sizes = sys.argv[1:]
rank, sizes = int(rank), tuple(map(int, sizes))
world = sizes[0] * sizes[1] * sizes[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "cp", "tp"))
out, seen = {}, []

def transform(sample, generator):
    seen.append(sample["key"])
    return sample

def make(folder, once=True, **options):
    given = {"batch_size": 4, "mesh": mesh, "num_workers": 2, "transform": transform,
             "image": datapipe.ImageSpec(size=16, normalize="clip", dtype=torch.bfloat16)}
    workers = datapipe.WorkerSpec(decode_once=once)
    return datapipe.make_loader(folder, workers=workers, **given | options)

def digest(batch):
    hashed = hashlib.sha256()
    for name, value in sorted(batch.items()):
        if isinstance(value, torch.Tensor):
            shown = value.shape, value.stride(), value.dtype
            hashed.update(value.contiguous().view(torch.uint8).numpy().tobytes())
            value = shown
        hashed.update(f"{name} {value}".encode())
    return hashed.hexdigest()

def taken(loader):
    return [(digest(batch), loader.state_dict()) for batch in loader]

out["each"] = taken(make(good, once=False))
out["keys"] = [key for batch in make(good, once=False, meta=("key", "valid"))
               for key, valid in zip(batch["key"], batch["valid"]) if valid]
seen.clear()
loader = make(good)
out["once"] = taken(loader)
out["decoded"] = len(seen)
half = make(good)
half.load_state_dict(out["once"][2][1])
out["resumed"] = taken(half)
layout = datapipe.DeviceSpec("cpu", channels_last=True)
out["device"] = [taken(make(good, once=once, device=layout)) for once in (False, True)]

skipping = make(damaged, on_error="skip", transform=None)
out["skipping"], out["skipped"] = len(taken(skipping)), skipping.skipped
raising = make(damaged, shuffle=False, batch_size=1, transform=None)
got = 0
try:
    for batch in raising:
        got += 1
except datapipe.DecodeError as error:
    out["error"] = f"{got} {error}"
dist.barrier()
dist.destroy_process_group()
print(json.dumps(out))
"""


@pytest.mark.campaign
@pytest.mark.parametrize("sizes", [(1, 1, 2), (1, 2, 2), (2, 2, 1)], ids=str)
def test_peers_on_a_mesh_decode_once_and_get_the_same_batches(packed, damaged, tmp_path, sizes):
    """`sizes` are those of data, context and tensor parallelism."""
    peers = sizes[1] * sizes[2]
    given = (packed, damaged, tmp_path / "store")
    outputs = run_ranks(RANK, *((*given, rank, *sizes) for rank in range(sizes[0] * peers)))
    ranks = [json.loads(output) for output in outputs]
    for number, rank in enumerate(ranks):
        assert rank["once"] == rank["each"]
        assert rank["resumed"] == rank["once"][3:]
        assert rank["device"][1] == rank["device"][0]
        first = number - number % peers
        assert bool(rank["decoded"]) == (number == first)
        for name in ("once", "skipping", "skipped"):
            assert rank[name] == ranks[first][name]
        assert rank.get("error") == ranks[first].get("error")
    assert sum(rank["skipped"] for rank in ranks[::peers]) == 2
    if sizes[0] == 1:
        assert ranks[-1]["error"].startswith("6 sample 000000006")
    assert ranks[0]["error"].endswith("`datapipe index --force`")
    assert (ranks[0]["once"] == ranks[-1]["once"]) == (sizes[0] == 1)
    keys = [key for rank in ranks[::peers] for key in rank["keys"]]
    assert len(keys) == len(set(keys)) == 37  # ranks of data share the epoch


def test_without_a_mesh_there_are_no_peers_to_share_with(packed):
    with pytest.raises(PlanError, match=r"decode_once needs a mesh, .* give mesh= too"):
        datapipe.make_loader(packed, batch_size=4, workers=WorkerSpec(decode_once=True))


def test_a_mesh_without_peers_loads_by_itself(packed):
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        workers = WorkerSpec(decode_once=True)
        loader = datapipe.make_loader(packed, batch_size=4, mesh=mesh, workers=workers)
        assert len(list(loader)) == len(loader)
