"""Samples per second of copying samples into new shards, beside `cp` of as many bytes.

`merge` copies all samples of two datasets, `select` every second sample at random, `cp` the tars
that `merge` reads. All end with an fsync of what they wrote. datapipe also compares every member
with its checksum and writes an index; importing it is not timed, starting `cp` and `sync` is. The
output goes to a fresh folder on the disk of the source, which is deleted after the run.
"""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import Contestant, Run, command, machine, parse, race
from benchmarks.data import fresh, packed, photographs, timed, warm_cache
from datapipe.curate.choose import merge_datasets, select_samples, split_dataset
from datapipe.curate.spec import CopySpec


def main() -> None:
    options = parse(command("curate", __doc__), samples=32768, rounds=5)
    photos = photographs(options.samples)
    source, count = packed(photos), photos.count
    halves = source.with_name(f"{source.name}-halves")
    split_dataset(source, halves, parts={"one": 0.5, "two": 0.5})
    parts = [halves / "one", halves / "two"]
    tars = [tar for part in parts for tar in sorted(part.glob("*.tar"))]
    numbered = CopySpec(renumber=True)
    half = count // 2
    entries: dict[str, tuple[int, Callable[[Path], object]]] = {
        "merge": (count, lambda out: merge_datasets(parts, out)),
        "merge, new keys": (count, lambda out: merge_datasets(parts, out, output=numbered)),
        "select": (half, lambda out: select_samples(source, out, number=half)),
        "cp": (count, partial(_cp, tars)),
    }

    def make(number: int, copy: Callable[[Path], object]) -> Callable[[], Run]:
        def run() -> Run:
            with fresh() as home:
                return timed(number, lambda: copy(home / "out"))

        warm_cache([*tars, *source.glob("*.tar")])
        return run

    race(
        [Contestant(name, partial(make, *entry)) for name, entry in entries.items()],
        options,
        f"Copying samples: {photos}, with a caption each; {options.rounds} rounds",
        where=machine("datapipe", cache="warm"),
        references=("cp",),
        unit="samples/s",
    )


def _cp(tars: list[Path], out: Path) -> None:
    out.mkdir()
    copies = [out / f"{number}.tar" for number in range(len(tars))]
    for tar, copy in zip(tars, copies, strict=True):
        subprocess.run(["cp", tar, copy], check=True)
    subprocess.run(["sync", *copies, out], check=True)


if __name__ == "__main__":
    main()
