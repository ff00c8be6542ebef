"""`datapipe select`, `split`, `merge`, `dedup` and `diff`: what is printed, and exit codes."""

import json


def test_selecting_says_what_it_did(run, read, shards, tmp_path):
    command = ("select", shards, tmp_path / "some", "--where", "images == 2", "--number", 9)
    done = run(*command, "--shard-size", 5, "--seed", 3)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"Wrote {tmp_path / 'some'}" in done.stdout
    assert "samples   9" in done.stdout
    again = read(run(*command, "--shard-size", 5, "--seed", 3, "--json"))
    assert (again["samples"], again["images"], again["shards"]) == (9, 18, 2)
    assert again["finished_before"]
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"\xef\xbb\xbf000000004\r\n000000001\n")  # with a byte order mark
    listed = read(run("select", shards, tmp_path / "listed", "--keys", keys, "--view", "--json"))
    assert listed["samples"] == 2
    other = run(*command, "--seed", 4)
    assert other.exit_code == 1
    assert "was started with other options" in other.stderr


def test_parts_are_named_or_a_share(run, read, shards, tmp_path):
    found = read(run("split", shards, tmp_path / "a", "--val", "20%", "--json"))
    assert found.keys() == {"val", "train"}
    assert found["val"]["output"] == str(tmp_path / "a" / "val")
    assert 0 < found["val"]["samples"] < 20 < found["train"]["samples"]
    named = read(run("split", shards, tmp_path / "b", "--parts", "x=50%, y=0.5", "--json"))
    assert sum(part["samples"] for part in named.values()) == 40


def test_merging_and_comparing(run, read, shards, tmp_path):
    options = ("--prefix", "a-,", "--sidecars", "wids")
    assert (
        read(run("merge", shards, shards, tmp_path / "both", *options, "--json"))["samples"] == 80
    )
    assert (tmp_path / "both" / "shardindex.json").exists()
    differ = run("diff", shards, tmp_path / "both")
    assert (differ.exit_code, differ.stderr) == (1, "")
    assert "only in B 40" in differ.stdout
    assert "only in B: a-000000000, a-000000001" in differ.stdout
    found = json.loads(run("diff", shards, tmp_path / "both", "--json").stdout)
    assert (found["is_same"], found["equal"], found["only_b"]) == (False, 40, 40)
    assert found["samples"] == [40, 80]
    same = run("diff", shards, shards)
    assert (same.exit_code, same.stdout.splitlines()[0]) == (0, "The samples are the same")
    wrong = run("diff", shards, tmp_path / "nothing")
    assert wrong.exit_code == 2
    assert "no such folder" in wrong.stderr


def test_duplicates_are_shown(run, read, shards, tmp_path):
    done = run("dedup", shards, tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert "its images are those of sample 000000001" in done.stdout
    assert f"all rejects: {tmp_path / 'out' / 'rejects.jsonl'}" in done.stdout
    report = read(run("dedup", shards, tmp_path / "out", "--json"))
    assert report["samples"] + report["rejected"] == 40
    texts = read(run("dedup", shards, tmp_path / "texts", "--text", "--near", 2, "--json"))
    assert texts["rejected"] == 0
