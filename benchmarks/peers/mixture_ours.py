"""datapipe, from its shards: threads."""

from typing import Any

from benchmarks.peers.mixture import SIDE, Mixture
from benchmarks.peers.rank import Say

PACKAGES = ("datapipe-vlm", "torch")


def run(say: Say, **task: Any) -> None:
    # Names of `datapipe` are imported when they are first used.
    from datapipe import ImageSpec, make_loader
    from datapipe.decode.normalize import KERNEL

    KERNEL.load()
    say("imports")
    mixture = Mixture(**task)
    loader = make_loader(
        mixture.weights,
        batch_size=mixture.batch,
        image=ImageSpec(size=SIDE),
        rank=mixture.rank,
        world_size=mixture.world,
        num_workers=mixture.workers,
        epochs=None,
    )
    if mixture.resume:
        loader.load_state_dict(mixture.load())
    say("open")
    mixture.follow(say, loader, lambda batch: batch["text"], loader.state_dict)
    loader.close()
