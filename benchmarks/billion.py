"""Time and memory until the first step of a billion samples is known.

    python -m benchmarks.billion

The columns are simulated: as large as those of a billion samples, with lengths and images as in
`benchmarks.plan`, memory-mapped as the loader has them. They take 16 GB in `build/` and are removed
afterwards, unless --keep is given. The plan is made in a new process that does nothing else.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import command, machine, parse_args, show, write_json
from benchmarks.data import drop_cache
from datapipe.index.files.block_checksums import write_sums

SAMPLES = 1_000_000_000
_DISTINCT = 1 << 20  # samples that are drawn; the columns repeat them

_PROGRAM = """
import json, sys, time
started = time.perf_counter()
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from datapipe.index.files.block_checksums import checked_files
from datapipe.loader.schedule.sample_source import TextSizes
from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Position, walk
from datapipe.loader.schedule.block_cache import PlannedBlocks
imported = time.perf_counter()
def peak():
    # Pages of mapped files count. ru_maxrss would start with the peak of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3
before = peak()
folder, world = Path(sys.argv[1]), 64
dtypes = {"text.npy": "<i4", "labels.npy": "<i4", "sample_image.npy": "<i8"}
files = checked_files(folder, dtypes, int((folder / "sums").read_text()), remedy="")
def column(name):
    if sys.argv[3] == "plain":
        return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
    return files[f"{name}.npy"]
text = TextSizes(
    dataset=SimpleNamespace(columns=SimpleNamespace(sample_image=column("sample_image"))),
    spec=SimpleNamespace(image_tokens=144, overlong="truncate"),
    encoder=None,
    images=SimpleNamespace(tokens=144),
    columns=SimpleNamespace(text_tokens=column("text"), label_tokens=column("labels")),
    limit=8192,
)
options = PlanOptions(shuffle=True, seed=int(sys.argv[2]), pack=8192, group=max(64, world))
source = Source.of_dataset(len(text.columns.text_tokens), options, measure=text.measure)
blocks = PlannedBlocks(EpochPlan(source, options, 0), None, ahead=False)
step = next(walk(blocks, Position(0), share=world))
done = time.perf_counter()
after = peak()
print(json.dumps({"import_s": imported - started, "first_step_s": done - imported,
    "imports_mb": before, "peak_mb": after, "packs": len(blocks(0, 0))}))
"""


def write_columns(folder: Path, samples: int, *, most_images: int = 8) -> None:
    """Make the columns that the plan reads, of so many samples with up to `most_images` each."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    images = random.integers(0, most_images + 1, _DISTINCT)
    text = np.clip(np.exp(random.normal(5.5, 1.2, _DISTINCT)), 10, 8192 - 144 * 8).astype(np.int32)
    for name, values in (("text", text), ("labels", text // 2)):
        column = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.int32, (samples,))
        for start in range(0, samples, _DISTINCT):
            part = column[start : start + _DISTINCT]
            part[:] = values[: len(part)]
    offsets = np.cumsum(images, dtype=np.int64)
    column = np.lib.format.open_memmap(folder / "sample_image.npy", "w+", np.int64, (samples + 1,))
    column[0] = 0
    for start in range(0, samples, _DISTINCT):
        part = column[start + 1 : start + 1 + _DISTINCT]
        part[:] = column[start] + offsets[: len(part)]
    del column, part
    sums = write_sums(folder, ("text.npy", "labels.npy", "sample_image.npy"))
    (folder / "sums").write_text(str(sums))


def measure(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    if options.cold:
        drop_cache(options.folder.iterdir())
    way = "plain" if options.plain else "checked"
    words = [sys.executable, "-c", _PROGRAM, str(options.folder), str(seed), way]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = command("billion", __doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="leave the columns where they are")
    parser.add_argument("--cold", action="store_true", help="drop the columns' page cache first")
    parser.add_argument("--plain", action="store_true", help="compare no checksums")
    parser.add_argument("--folder", type=Path, default=Path("build/billion"))
    options = parse_args(parser)
    if not (options.folder / "sample_image.npy").exists():
        print(f"writing columns of {options.samples:,} samples to {options.folder}", flush=True)
        write_columns(options.folder, options.samples)
    try:
        rounds = [measure(options, seed) for seed in range(options.rounds)]
    finally:
        if not options.keep:
            shutil.rmtree(options.folder)
    title = f"first step of {options.samples:,} samples"
    middle = {name: median(result[name] for result in rounds) for name in rounds[0]}
    show(f"{title}; the last row has the medians", [*rounds, middle])
    where = machine("numpy", "numba", cache="cold" if options.cold else "warm")
    write_json(options.json, {"title": title, "machine": where, "rounds": rounds})


if __name__ == "__main__":
    main()
