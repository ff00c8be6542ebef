"""Megatron-Energon, from the same shards and index files beside them: a blend, processes."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.mixture import Mixture
from benchmarks.peers.rank import Say

PACKAGES = ("megatron-energon", "torch", "webdataset")
_SHUFFLE = 100  # samples of a shuffle buffer, and of a run of neighbours, as in its documentation


def run(say: Say, **task: Any) -> None:
    from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

    say("imports")
    mixture = Mixture(**task)
    workers = WorkerConfig(rank=mixture.rank, world_size=mixture.world, num_workers=mixture.workers)
    dataset = get_train_dataset(
        blend(mixture),
        worker_config=workers,
        batch_size=mixture.batch,
        shuffle_buffer_size=_SHUFFLE,
        max_samples_per_sequence=_SHUFFLE,
    )
    loader = get_savable_loader(dataset, worker_config=workers)
    if mixture.resume:
        loader.restore_state_rank(mixture.load())
    say("open")
    mixture.follow(say, loader, lambda batch: batch.caption, loader.save_state_rank)


def blend(mixture: Mixture) -> Path:
    """Write a metadataset of the folders, with their weights; every rank has its own file."""
    datasets = [
        {"path": str(Path(folder).absolute()), "weight": weight}
        for folder, weight in mixture.weights.items()
    ]
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": datasets}},
    }
    path = Path(mixture.states).absolute() / f"blend-{mixture.rank}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))  # which is YAML
    return path
