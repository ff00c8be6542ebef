"""Which raw data an output belongs to, and what is odd about some of it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from datapipe import PackError
from datapipe.pack.job import pack_dataset


def test_a_finished_pack_is_not_mistaken_for_one_of_other_raw_data(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 4)
    pack_dataset(raw, tmp_path / "out")
    assert pack_dataset(raw, tmp_path / "out").finished_before
    moved = shutil.move(raw, tmp_path / "moved")
    assert pack_dataset(moved, tmp_path / "out").finished_before
    other = make_folder(tmp_path / "other", 5)
    with pytest.raises(PackError, match="4 inputs then, now 5"):
        pack_dataset(other, tmp_path / "out")


def test_an_edited_record_is_noticed_when_a_pack_is_run_again(tmp_path, make_llava):
    turns = [{"from": "human", "value": "How many?"}, {"from": "gpt", "value": "One."}]
    raw = make_llava(tmp_path / "raw", [{"id": "a", "conversations": turns}])
    pack_dataset(raw, tmp_path / "out")
    turns[1]["value"] = "Two."
    make_llava(tmp_path / "raw", [{"id": "a", "conversations": turns}])
    with pytest.raises(PackError, match="1 inputs then, now others"):
        pack_dataset(raw, tmp_path / "out")


def test_numbers_that_json_does_not_have_become_null(tmp_path, make_llava, members):
    record = {
        "id": "a",
        "scores": [1.5, float("nan"), {"deep": float("-inf")}],
        "conversations": [{"from": "human", "value": "Hello"}],
    }
    raw = make_llava(tmp_path / "raw", [record])
    pack_dataset(raw, tmp_path / "out")
    ((_, packed),) = members(tmp_path / "out").items()
    assert b"NaN" not in packed["json"]
    assert json.loads(packed["json"])["scores"] == [1.5, None, {"deep": None}]


def test_a_linked_folder_is_followed_and_a_circular_link_rejected(tmp_path, make_folder, rejects):
    raw = make_folder(tmp_path / "raw", 2)
    elsewhere = make_folder(tmp_path / "elsewhere", 3)
    (raw / "linked").symlink_to(elsewhere)
    (raw / "circle").symlink_to(raw)
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    assert report.samples == 5
    (reject,) = rejects(tmp_path / "out")
    assert reject["source"] == "circle"
    assert "leads back" in reject["reason"]


def test_the_command_is_a_module_too(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 2)
    command = [sys.executable, "-m", "datapipe", "pack", str(raw), str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["samples"] == 2


def test_a_named_pipe_is_rejected_and_not_waited_for(tmp_path, make_folder, rejects):
    raw = make_folder(tmp_path / "raw", 2)
    os.mkfifo(raw / "pipe.jpg")
    (raw / "folder.jpg").mkdir()
    pack_dataset(raw, tmp_path / "out", max_rejects=1)
    (reject,) = rejects(tmp_path / "out")
    assert (reject["source"], reject["reason"]) == ("pipe.jpg", "not a regular file")
