"""A pack takes the memory of a shard, not of the dataset."""

import json
import subprocess
import sys

import pytest

PACK = """
import sys
from pathlib import Path
from datapipe.pack.pack_dataset import pack_dataset
raw, out = sys.argv[1:]
pack_dataset(raw, out, shard_size=1000, workers=1, check="header")
# ru_maxrss would begin with the peak of the parent process.
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])  # KB
"""


def write_records(raw, samples, jpeg):
    raw.mkdir()
    (raw / "a.jpg").write_bytes(jpeg(0))
    turns = [{"from": "human", "value": "<image>\nWhat is this?"}]
    with (raw / "data.jsonl").open("w") as file:
        for number in range(samples):
            record = {"id": number, "image": "a.jpg", "conversations": turns}
            file.write(json.dumps(record) + "\n")


def write_folder(raw, samples, jpeg):
    raw.mkdir()
    (raw.parent / "a.jpg").write_bytes(jpeg(0))
    for number in range(samples):
        (raw / f"{number:09d}.jpg").symlink_to(raw.parent / "a.jpg")


@pytest.mark.campaign
@pytest.mark.parametrize("write", [write_records, write_folder])
def test_ten_times_the_samples_take_no_more_memory(tmp_path, jpeg, write):
    peaks = []
    for samples in (2_000, 20_000):
        home = tmp_path / str(samples)
        home.mkdir()
        write(home / "raw", samples, jpeg)
        command = [sys.executable, "-c", PACK, str(home / "raw"), str(home / "out")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        peaks.append(int(done.stdout))
    small, large = peaks
    assert large < small + 20_000, f"{small:,} and {large:,} KB"
