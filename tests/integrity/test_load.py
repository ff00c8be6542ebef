"""Loads at the edges: many samples, a large member, many workers, a slow side, many epochs.

`DATAPIPE_LOAD=full` has a million samples, a member of more than 4 GiB and a month of epochs;
without it, runs are smaller.
"""

import gc
import json
import os
import random
import tarfile
import threading
import time
from functools import partial

import psutil
import pytest

import datapipe
from datapipe import ImageSpec, WorkerSpec
from datapipe.testing import assert_same_batches, valid_keys
from tests.programs import python
from tests.waiting import wait_until

pytestmark = pytest.mark.campaign

FULL = os.environ.get("DATAPIPE_LOAD") == "full"

READ = """
import json, sys
from pathlib import Path
import datapipe
seen, total = 0, 0
for sample in datapipe.webdataset_source(sys.argv[1], batch_size=1000):
    seen, total = seen + 1, total + int(json.loads(sample["json"])["id"])
# ru_maxrss would begin with the peak of the parent process.
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])  # KB
print(json.dumps([seen, total, peak]))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory, make_folder):
    """37 images with captions in five shards."""
    home = tmp_path_factory.mktemp("load")
    datapipe.pack_dataset(make_folder(home / "raw", 37), home / "shards", shard_size=8)
    return home / "shards"


def load(shards, **options):
    return datapipe.make_loader(shards, batch_size=4, image=ImageSpec(size=32), **options)


def test_many_small_samples_are_packed_verified_and_read_once_each(tmp_path):
    peaks = []
    for samples in (10_000, 1_000_000 if FULL else 50_000):
        home = tmp_path / str(samples)
        (home / "raw").mkdir(parents=True)
        with (home / "raw" / "data.jsonl").open("w") as file:
            for number in range(samples):
                turns = [{"from": "human", "value": f"{number}?"}, {"from": "gpt", "value": "Yes."}]
                file.write(json.dumps({"id": number, "conversations": turns}) + "\n")
        report = datapipe.pack_dataset(home / "raw", home / "shards")
        assert (report.samples, report.rejected) == (samples, 0)
        assert datapipe.verify_dataset(home / "shards").is_whole
        seen, total, peak = json.loads(python(READ, home / "shards", check=True).stdout)
        assert (seen, total) == (samples, samples * (samples - 1) // 2)
        peaks.append(peak)
    few, many = peaks
    assert many < few + 100_000, f"{few:,} and {many:,} KB"


def test_a_member_beyond_four_gigabytes(tmp_path, jpeg):
    size = (4 << 30) + 5 if FULL else (2 << 30) + 5
    tar = tmp_path / "raw" / "000.tar"
    tar.parent.mkdir()
    with tar.open("wb") as file:
        for name, content in (("a.jpg", jpeg(0)), ("a.bin", None), ("b.jpg", jpeg(1))):
            member = tarfile.TarInfo(name)
            member.size = size if content is None else len(content)
            file.write(member.tobuf())
            if content is None:
                file.truncate(file.tell() + size)  # zeros that take no space
                file.seek(0, os.SEEK_END)
            else:
                file.write(content)
            file.truncate(-(-file.tell() // 512) * 512)
            file.seek(0, os.SEEK_END)
        file.truncate(file.tell() + 1024)
    report = datapipe.index_shards(tar.parent)
    assert report.samples == 2
    assert datapipe.verify_dataset(tar.parent).is_whole
    if FULL:
        datapipe.pack_dataset(tar.parent, tmp_path / "shards")
        found = datapipe.verify_dataset(tmp_path / "shards")
        assert found.is_whole
        assert found.bytes > size
    (batch,) = datapipe.make_loader(tar.parent, batch_size=2, image=ImageSpec(size=8), epochs=1)
    assert sorted(valid_keys([batch])) == ["a", "b"]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_sixty_four_workers_change_no_batch(packed, kind):
    with load(packed, epochs=8, num_workers=64, workers=WorkerSpec(kind)) as many:
        assert_same_batches(many, load(packed, epochs=8, num_workers=0))


class Counting:
    """Transform that counts the samples which were made."""

    def __init__(self, wait=bool):
        self.made, self._lock, self._wait = 0, threading.Lock(), wait

    def __call__(self, sample, generator):
        self._wait()
        with self._lock:
            self.made += 1
        return sample

    def has_made(self, samples):
        return self.made >= samples


def test_a_slow_consumer_is_not_run_ahead_of_without_bound(packed):
    workers, prefetch, size = 3, 2, 4
    counting = Counting()
    options = {"transform": counting, "num_workers": workers, "prefetch_factor": prefetch}
    ahead = []
    with load(packed, epochs=None, **options) as loader:
        batches = iter(loader)
        for taken in range(1, 51):
            next(batches)
            wait_until(partial(counting.has_made, (taken + prefetch) * size))
            ahead.append(counting.made - taken * size)
    assert max(ahead) <= (prefetch + workers + 1) * size


def test_a_slow_producer_changes_no_batch(packed):
    times = random.Random(0)
    slow = Counting(lambda: time.sleep(times.choice([0, 0, 0, 0.02])))
    assert_same_batches(
        load(packed, epochs=4, transform=slow, num_workers=8),
        load(packed, epochs=4, transform=Counting(), num_workers=0),
    )


@pytest.mark.parametrize(("kind", "policy"), [("threads", "next-use"), ("processes", "pin")])
def test_epochs_of_days_leave_memory_threads_and_files_as_they_are(packed, tmp_path, kind, policy):
    cache = datapipe.CacheSpec(memory="100KB", disk=tmp_path, policy=policy)
    loader = load(packed, cache=cache, num_workers=2, workers=WorkerSpec(kind))

    def held():
        gc.collect()
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return (
            sum(process.num_threads() for process in processes),
            sum(process.num_fds() for process in processes),
            sum(process.memory_info().rss for process in processes),
        )

    def train(epochs):
        for _ in range(epochs):
            for batch in loader:
                del batch

    with loader:
        train(20)
        threads, files, memory = held()
        train(3000 if FULL else 300)  # a day at 1,400 images/s is 94 epochs of ImageNet
        after = held()
    assert after[0] <= threads
    assert after[1] <= files
    assert after[2] <= memory + 32_000_000
