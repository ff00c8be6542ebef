"""The work of a rank that reads a mixture, for every loader alike.

Phases: "imports", "open", "first batch", "batches", "end". A fresh rank saves its state after
`batches` batches, and then reads `following` more. A rank that resumes loads the state and reads
those again. Imported by every peer's process, so it needs no more than the standard library.
"""

import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.child import Say

SIDE = 32  # pixels of the images, which are decoded and not resized
_SHUFFLE = 100  # samples of Energon's shuffle buffer, and of a run of neighbours, as it documents
_COLUMNS = {"jpg": "bytes", "txt": "str"}  # of Streaming


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Task of a rank.

    Attributes:
        weights: of folders of shards.
        home: folder that contains all of these, at any depth.
        rank, world: this rank, and their number.
        workers: threads or processes of the rank.
        batch: samples of a batch of a rank.
        batches, following: read before the state is saved, and after it.
        states: folder for the states.
        resume: load a state first.
    """

    weights: dict[str, int]
    home: str
    rank: int
    world: int
    workers: int
    batch: int
    batches: int
    following: int
    states: str
    resume: bool = False

    @property
    def path(self) -> Path:
        return Path(self.states) / f"rank-{self.rank}"

    def load(self) -> Any:
        return pickle.loads(self.path.read_bytes())

    def follow(
        self,
        say: Say,
        loader: Iterable[Any],
        texts: Callable[[Any], Sequence[str]],
        save: Callable[[], Any],
    ) -> None:
        """Read batches, and report phases to `say`.

        `texts` returns the captions of a batch, `save` the loader's state. If this rank resumes,
        the loader has loaded its state already.
        """
        iterator = iter(loader)
        first = next(iterator)
        say("first batch")
        following = [first] if self.resume else []
        size = 0
        if not self.resume:
            for _ in range(self.batches - 1):
                next(iterator)
            content = pickle.dumps(save())
            size = len(content)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(content)
        say("batches", state=size)
        while len(following) < self.following:
            following.append(next(iterator))
        digests = [[hashlib.sha256(text.encode()) for text in texts(batch)] for batch in following]
        say("end", following=[[digest.hexdigest()[:12] for digest in each] for each in digests])


def datapipe(say: Say, **task: Any) -> None:
    """Read shards by threads."""
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


def energon(say: Say, **task: Any) -> None:
    """Read the same shards with Megatron-Energon, as a blend by processes.

    Index files are beside the shards.
    """
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


def streaming(say: Say, *, convert: bool = False, **task: Any) -> None:
    """Read the same samples with MosaicML Streaming, as streams of its own shards, by processes.

    Or make these shards, if they are missing.
    """
    mixture = Mixture(**task)
    if convert:
        for folder in mixture.weights:
            convert_shards(Path(folder), form(mixture, folder))
        say("end")
        return
    import benchmarks.peers.no_torchvision  # noqa: F401  # isort: skip
    import numpy as np
    import torch.distributed
    from PIL import Image
    from streaming import Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    class Photographs(StreamingDataset):  # type: ignore[misc]
        """Dataset that decodes in `__getitem__`, as its documentation does."""

        def __getitem__(self, index: int) -> tuple[Any, str]:
            sample: dict[str, Any] = super().__getitem__(index)
            with Image.open(io.BytesIO(sample["jpg"])) as image:
                return np.array(image.convert("RGB")), sample["txt"]

    # Otherwise Streaming makes a group and ends it, twice, and ranks can meet the wrong one.
    torch.distributed.init_process_group("gloo")
    clean_stale_shared_memory()
    say("imports")
    total = sum(mixture.weights.values())
    streams = [
        Stream(local=str(form(mixture, folder)), proportion=weight / total)
        for folder, weight in mixture.weights.items()
    ]
    dataset = Photographs(streams=streams, shuffle=True, batch_size=mixture.batch)
    loader = StreamingDataLoader(
        dataset, batch_size=mixture.batch, num_workers=mixture.workers, drop_last=True
    )
    if mixture.resume:
        loader.load_state_dict(mixture.load())
    say("open")
    mixture.follow(say, loader, lambda batch: batch[1], loader.state_dict)


def form(mixture: Mixture, folder: str) -> Path:
    home = Path(mixture.home)
    return home.with_name(f"{home.name}-mosaic") / Path(folder).relative_to(home)


def convert_shards(folder: Path, out: Path) -> None:
    """Write the samples of tar shards in Streaming's format; link them where they are linked."""
    import benchmarks.peers.no_torchvision  # noqa: F401  # isort: skip
    from streaming import MDSWriter

    from benchmarks.common import made_once

    def write(place: Path) -> None:
        original = out.parent.parent / out.name
        if out.parent.name.startswith("link-") and (original / "index.json").exists():
            shutil.copytree(original, place, copy_function=os.link, dirs_exist_ok=True)
            return
        with MDSWriter(out=str(place), columns=_COLUMNS, exist_ok=True) as writer:
            for shard in sorted(folder.glob("*.tar")):
                with tarfile.open(shard) as tar:
                    sample: dict[str, Any] = {}
                    for member in tar:
                        data = tar.extractfile(member)
                        assert data is not None
                        ext = member.name.partition(".")[2]
                        sample[ext] = data.read() if ext == "jpg" else data.read().decode()
                        if len(sample) == len(_COLUMNS):
                            writer.write(sample)
                            sample = {}

    made_once(out, write)
