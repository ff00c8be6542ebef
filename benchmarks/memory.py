"""Peak memory of packing, at several numbers of samples: it must not grow with them.

The samples are one small image, named by as many records of a JSONL file (`records`) or by as many
links in one flat folder (`folder`), with a text each. What is reported is the peak of resident
memory (VmHWM) of the pack's process, and of the largest of its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import write_json
from benchmarks.data import photographs, scratch

LAYOUTS = ("records", "folder")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000, 500_000, 2_000_000])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table here")
    options = parser.parse_args()
    results = []
    print(f"{'layout':<8} {'samples':>10} {'samples/s':>10} {'pack, MB':>9} {'worker, MB':>11}")
    for layout in options.layouts:
        for samples in options.samples:
            rate, pack, worker = measure(layout, samples, options.workers)
            print(
                f"{layout:<8} {samples:>10,} {rate:>10,.0f} {pack:>9.0f} {worker:>11.0f}",
                flush=True,
            )
            results.append(
                {
                    "layout": layout,
                    "samples": samples,
                    "samples_per_second": rate,
                    "pack_mb": pack,
                    "worker_mb": worker,
                }
            )
            if options.json:
                write_json(options.json, results)


def measure(layout: str, samples: int, workers: int) -> tuple[float, float, float]:
    """Measure samples per second, and peak megabytes of the pack and of its largest worker."""
    home = scratch().with_name("memory").resolve()
    shutil.rmtree(home, ignore_errors=True)
    (home / "raw").mkdir(parents=True)
    try:
        _MAKERS[layout](home / "raw", samples)
        command = ["-m", "datapipe", "pack", str(home / "raw"), str(home / "out")]
        command += ["--workers", str(workers), "--check", "header", "--max-rejects", "0"]
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
        pack = worker = 0.0
        while process.poll() is None:
            pack = max(pack, peak(process.pid))
            forked = [pid for child in children(process.pid) for pid in children(child)]
            worker = max([worker, *map(peak, forked)])
            time.sleep(0.05)
        assert process.returncode == 0, f"the pack ended with {process.returncode}"
        return samples / (time.perf_counter() - started), pack, worker
    finally:
        shutil.rmtree(home)


def make_records(raw: Path, samples: int) -> None:
    shutil.copy(_image(), raw / "image.jpg")
    with (raw / "data.jsonl").open("w") as file:
        for number in range(samples):
            turns = [
                {"from": "human", "value": f"<image>\nWhat is this, for the {number}th time?"},
                {"from": "gpt", "value": "A photograph."},
            ]
            record = {"id": f"{number:09d}", "image": "image.jpg", "conversations": turns}
            file.write(json.dumps(record) + "\n")


def make_folder(raw: Path, samples: int) -> None:
    shutil.copy(_image(), raw.parent / "image.jpg")
    (raw.parent / "text.txt").write_text("a photograph")
    for number in range(samples):
        os.symlink(raw.parent / "image.jpg", raw / f"{number:09d}.jpg")
        os.symlink(raw.parent / "text.txt", raw / f"{number:09d}.txt")


_MAKERS: dict[str, Callable[[Path, int], None]] = {"records": make_records, "folder": make_folder}


def _image() -> Path:
    """Return a photograph of 2 KB: the number of samples is measured, not their size."""
    from PIL import Image

    path = scratch().with_name("small.jpg")
    with Image.open(photographs(64).paths()[0]) as image:
        image.resize((64, 48)).save(path, quality=80)
    return path


def peak(pid: int) -> float:
    """Megabytes; 0 of a process that has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1e3
    except OSError:
        pass
    return 0.0


def children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


if __name__ == "__main__":
    main()
