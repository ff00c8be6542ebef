"""Peak memory of packing, at several numbers of samples: it must not grow with them.

The samples are one small image, named by as many records of a JSONL file (`records`) or by as many
links in one flat folder (`folder`), with a text each. Peaks of resident memory (VmHWM) are those of
the pack's process and of its largest worker.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from benchmarks.common import Row, command, parse_args, show, write_json
from benchmarks.data import fresh, photographs


def main() -> None:
    parser = command("memory", __doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000, 500_000, 2_000_000])
    parser.add_argument("--layouts", nargs="+", choices=_MAKERS, default=list(_MAKERS))
    parser.add_argument("--workers", type=int, default=2)
    options = parse_args(parser)
    results = []
    for layout in options.layouts:
        for samples in options.samples:
            results.append(measure(layout, samples, options.workers))
            write_json(options.json, results)
    show("Peak memory of packing", results)


def measure(layout: str, samples: int, workers: int) -> Row:
    """Measure samples per second, and peak megabytes of the pack and of its largest worker."""
    with fresh() as folder:
        home = folder.resolve()
        (home / "raw").mkdir()
        # A photograph of 2 KB: the number of samples is measured, not their size.
        with Image.open(photographs(64).paths()[0]) as image:
            image.resize((64, 48)).save(home / "image.jpg", quality=80)
        _MAKERS[layout](home / "raw", samples)
        words = ["-m", "datapipe", "pack", str(home / "raw"), str(home / "out")]
        words += ["--workers", str(workers), "--check", "header", "--max-rejects", "0"]
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        pack = worker = 0.0
        while process.poll() is None:
            pack = max(pack, peak(process.pid))
            forked = [pid for child in children(process.pid) for pid in children(child)]
            worker = max([worker, *map(peak, forked)])
            time.sleep(0.05)
        assert process.returncode == 0, f"the pack ended with {process.returncode}"
        rate = samples / (time.perf_counter() - started)
    row: Row = {"layout": layout, "samples": samples, "samples_per_second": rate}
    return row | {"pack_mb": pack, "worker_mb": worker}


def make_records(raw: Path, samples: int) -> None:
    (raw.parent / "image.jpg").rename(raw / "image.jpg")
    with (raw / "data.jsonl").open("w") as file:
        for number in range(samples):
            turns = [
                {"from": "human", "value": f"<image>\nWhat is this, for the {number}th time?"},
                {"from": "gpt", "value": "A photograph."},
            ]
            record = {"id": f"{number:09d}", "image": "image.jpg", "conversations": turns}
            file.write(json.dumps(record) + "\n")


def make_folder(raw: Path, samples: int) -> None:
    (raw.parent / "text.txt").write_text("a photograph")
    for number in range(samples):
        os.symlink(raw.parent / "image.jpg", raw / f"{number:09d}.jpg")
        os.symlink(raw.parent / "text.txt", raw / f"{number:09d}.txt")


_MAKERS: dict[str, Callable[[Path, int], None]] = {"records": make_records, "folder": make_folder}


def peak(pid: int) -> float:
    """Return the peak of a process in megabytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = status.partition("VmHWM:")[2].split()
    return int(found[0]) / 1e3 if found else 0.0


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


if __name__ == "__main__":
    main()
