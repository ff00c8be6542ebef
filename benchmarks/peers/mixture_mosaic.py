"""MosaicML Streaming, from its own shards of the same samples: streams, processes."""

import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.peers.mixture import Mixture
from benchmarks.peers.rank import Say

PACKAGES = ("mosaicml-streaming", "torch", "pillow")
_COLUMNS = {"jpg": "bytes", "txt": "str"}


def run(say: Say, *, convert: bool = False, **task: Any) -> None:
    """Read batches; or make what they are read from, if that is missing."""
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
    """Return the folder of Streaming's shards of a dataset."""
    home = Path(mixture.home)
    return home.with_name(f"{home.name}-mosaic") / Path(folder).relative_to(home)


def convert_shards(folder: Path, out: Path) -> None:
    """Write the samples of tar shards in Streaming's format; link them where they are linked."""
    import benchmarks.peers.no_torchvision  # noqa: F401  # isort: skip
    from streaming import MDSWriter

    if out.exists():
        return
    temporary = out.with_name(f"{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    original = out.parent.parent / out.name
    if out.parent.name.startswith("link-") and (original / "index.json").exists():
        shutil.copytree(original, temporary, copy_function=os.link)
    else:
        with MDSWriter(out=str(temporary), columns=_COLUMNS) as writer:
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
    temporary.rename(out)
