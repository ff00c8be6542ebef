"""Feed a pipeline of torchdata nodes, and resume it exactly, on other ranks too.

python examples/torchdata_nodes.py SHARDS --steps 5 --state state.json

Run it again with the same `--state`, and it goes on with the next batch.
"""

import argparse
import io
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, from any folder
import datapipe

try:
    from torchdata import nodes
except ImportError:
    sys.exit("this example needs torchdata: pip install torchdata")


class DatapipeNode(nodes.BaseNode[dict[str, Any]]):  # type: ignore[misc]  # torchdata has no types
    """Node over batches of `make_loader`, or over raw samples of `webdataset_source`.

    Its state is that of datapipe: a position in the plan. So the nodes behind it resume exactly, on
    another number of ranks too, as long as they keep no samples back.

    Args:
        loader: a loader, or a source made with `batch_size=1`.
    """

    def __init__(self, loader: datapipe.Loader | datapipe.WebDatasetSource) -> None:
        super().__init__()
        self.loader = loader

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin at a state; without one, an epoch: the next, if the last was read to its end."""
        super().reset(initial_state)
        if initial_state is not None:
            self.loader.load_state_dict(initial_state)
        loader = self.loader
        self.batches = iter(loader) if isinstance(loader, datapipe.Loader) else loader.track(loader)

    def next(self) -> dict[str, Any]:
        return next(self.batches)

    def get_state(self) -> dict[str, Any]:
        return self.loader.state_dict()


def decode(sample: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    """Return the key of a raw sample and the size of its first image; it stands for your work."""
    images = [data for ext, data in sample.items() if ext.endswith(("jpg", "png", "webp"))]
    return sample["__key__"], Image.open(io.BytesIO(images[0])).size if images else (0, 0)


def make_pipeline(shards: str | Path, *, batch_size: int = 4, **options: Any) -> nodes.Loader[Any]:
    """Return raw samples, decoded by two threads and batched; `options` are of the source."""
    source = datapipe.webdataset_source(shards, batch_size=1, **options)
    decoded = nodes.ParallelMapper(DatapipeNode(source), decode, num_workers=2, method="thread")
    return nodes.Loader(nodes.Prefetcher(nodes.Batcher(decoded, batch_size, drop_last=False), 2))


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, and print some batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--state", type=Path, help="file to go on from, and to save the state to")
    asked = parser.parse_args(arguments)
    pipeline = make_pipeline(asked.shards)
    if asked.state and asked.state.exists():
        pipeline.load_state_dict(json.loads(asked.state.read_text()))
    for batch in islice(pipeline, asked.steps):
        print(*(f"{key} {width}x{height}" for key, (width, height) in batch), sep=", ")
    if asked.state:
        asked.state.write_text(json.dumps(pipeline.state_dict()))


if __name__ == "__main__":
    main()
