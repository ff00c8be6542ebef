"""A copy that was stopped anywhere is finished by the same call, with the same bytes."""

import pytest

import datapipe
from datapipe import CopySpec, PackError

from ..killed import CALLS_UNTIL_KILLED
from ..programs import python

# Copies samples, each time killed at another system call: at every one, into new folders; or again
# and again into one folder, each time a little later. Prints the names of the folders.
KILLER = """
from datapipe import CopySpec, dedup_dataset, merge_datasets, select_samples

source, out, mode, command = sys.argv[1:]
works = {
    "select": lambda out: select_samples(source, out, number=13, output=CopySpec("4")),
    "view": lambda out: select_samples(source, out, number=13, output=CopySpec(view=True)),
    "merge": lambda out: merge_datasets([source] * 2, out, output=CopySpec("15", renumber=True)),
    "dedup": lambda out: dedup_dataset(source, out, near=2, output=CopySpec("9")),
}
work = works[command]
work(f"{out}/whole")
if mode == "again":
    kills = 0
    while not calls_until_killed(10 + 7 * kills, lambda: work(f"{out}/again")):
        kills += 1
    assert kills >= 2
    print("again")
    sys.exit()
points = range(1, calls_until_killed(0, lambda: work(f"{out}/0")) + 1)
for point in points:
    assert not calls_until_killed(point, lambda: work(f"{out}/{point}"))
    work(f"{out}/{point}")
print(*points)
"""


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["again", "every"])
@pytest.mark.parametrize("command", ["select", "view", "merge", "dedup"])
def test_a_copy_killed_again_and_again_or_at_any_system_call_is_finished(
    shards, tmp_path, contents, mode, command
):
    program = CALLS_UNTIL_KILLED + KILLER
    names = python(program, shards, tmp_path, mode, command, check=True).stdout.split()
    assert len(names) > 30 or names == ["again"]
    whole = contents(tmp_path / "whole")
    for name in names:
        assert contents(tmp_path / name) == whole, f"killed at call {name}"


def some(source, out):
    return datapipe.select_samples(source, out, number=13, output=CopySpec("4"))


def marks(folder):
    """Inode and time of each shard: another once it is written again."""
    stats = {path.name: path.stat() for path in folder.glob("*.tar")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def test_a_full_disk_is_named_and_the_same_call_copies_what_is_left(
    shards, tmp_path, contents, failing_disk
):
    out = tmp_path / "out"
    with (
        failing_disk("pwrite", lambda number: number > 2),
        pytest.raises(PackError, match=r"No space left.*finished shards are kept"),
    ):
        some(shards, out)
    finished = marks(out)
    assert len(finished) in (1, 2)
    with pytest.raises(datapipe.IndexMismatch, match="was not finished; run the same"):
        datapipe.make_loader(out, batch_size=1)
    datapipe.select_samples(shards, tmp_path / "other", number=19)
    refuse_others(shards, tmp_path)
    assert not some(shards, out).finished_before
    some(shards, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    copied = marks(out)
    assert copied.items() >= finished.items()
    report = some(shards, out)
    assert (report.finished_before, report.samples) == (True, 13)
    assert marks(out) == copied
    refuse_others(shards, tmp_path)
    (out / "shard-000001.tar").unlink()
    with pytest.raises(datapipe.IndexMismatch, match=r"shard-000001\.tar is missing"):
        some(shards, out)


def refuse_others(shards, folder):
    """Other options and another source cannot continue a copy."""
    out, select = folder / "out", datapipe.select_samples
    with pytest.raises(PackError, match=r"other options.*number: 13 before, 12 now"):
        select(shards, out, number=12, output=CopySpec("4"))
    with pytest.raises(PackError, match=r"other options.*shard_size: '4' before, '5' now"):
        select(shards, out, number=13, output=CopySpec("5"))
    with pytest.raises(PackError, match=r"other options.*from: "):
        some(folder / "other", out)


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_is_too_small_is_told_before_anything_is_copied(shards, tmp_path):
    with pytest.raises(PackError, match=r"samples to copy, [\d.]+ KB are needed, 10.0 KB are free"):
        some(shards, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))
    output = CopySpec("4", space_check=False)
    assert datapipe.select_samples(shards, tmp_path / "out", number=3, output=output).samples == 3
