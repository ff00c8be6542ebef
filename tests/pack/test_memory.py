"""A pack takes the memory of a shard, not of the dataset.

`DATAPIPE_INPUTS` is the number of inputs with which the memory of Ray's driver is measured.
"""

import json
import os
import shutil
from functools import partial

import pytest

from tests.programs import python

PACK = """
import json, sys
from pathlib import Path
from datapipe import pack_dataset
raw, out, options = sys.argv[1:]
assert pack_dataset(raw, out, **json.loads(options)).lost == 0
# ru_maxrss would begin with the peak of the parent process.
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])  # KB
"""


def write_records(raw, samples, jpeg, **images):
    for name in images.values():
        (raw / name).write_bytes(jpeg(0))
    turns = [{"from": "human", "value": "What is this?"}, {"from": "gpt", "value": "A text."}]
    with (raw / "data.jsonl").open("w") as file:
        for number in range(samples):
            record = {"id": number, "conversations": turns, **images}
            file.write(json.dumps(record) + "\n")


def write_folder(raw, samples, jpeg):
    (raw.parent / "a.jpg").write_bytes(jpeg(0))
    for number in range(samples):
        (raw / f"{number:09d}.jpg").symlink_to(raw.parent / "a.jpg")


HERE = {"shard_size": 1000, "workers": 1, "check": "header"}
RAY = {"shard_size": 20_000, "workers": 2, "engine": "ray"}
MANY = int(os.environ.get("DATAPIPE_INPUTS", "50000"))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("write", "options", "few", "many", "more"),
    [
        (partial(write_records, image="a.jpg"), HERE, 2_000, 20_000, 20_000),
        (write_folder, HERE, 2_000, 20_000, 20_000),
        pytest.param(
            *(write_records, RAY, 10_000, MANY, 35_000), marks=pytest.mark.flaky(reruns=2)
        ),
    ],
    ids=["records", "folder", "Ray"],
)
def test_many_samples_take_no_more_memory(tmp_path, jpeg, write, options, few, many, more):
    if options is RAY:
        pytest.importorskip("ray")
    peaks = []
    for samples in (few, many):
        home = tmp_path / str(samples)
        (home / "raw").mkdir(parents=True)
        write(home / "raw", samples, jpeg)
        done = python(PACK, home / "raw", home / "out", json.dumps(options), check=True)
        peaks.append(int(done.stdout))
        shutil.rmtree(home)
    small, large = peaks
    assert large < small + more, f"{small:,} and {large:,} KB"
