"""Datasets packed to an object store and read from there, over a socket, with its faults."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe import ImageSpec, PackError, StoreError, pack_dataset
from datapipe.remote.folder import RemoteOptions
from datapipe.remote.retry import RetryPolicy
from datapipe.remote.upload import RemoteTarget
from datapipe.testing import assert_same_batches

from .s3server import S3Server, s3_serving

pytest.importorskip("s3fs")

QUICK = RetryPolicy(first_pause=0.001, longest_pause=0.002, timeout=10.0)
URL = "s3://bucket/x/shards"


@pytest.fixture(autouse=True)
def quick_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between attempts."""
    monkeypatch.setattr(RetryPolicy, "pause", lambda *_: 0.001)


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_serving("bucket") as server:
        yield server


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, make_folder: Any, make_broken: Any) -> Path:
    folder: Path = make_folder(tmp_path_factory.mktemp("raw"), 9)
    make_broken(folder)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, raw: Path) -> Path:
    out = tmp_path_factory.mktemp("local") / "out"
    pack_dataset(raw, out, shard_size=3, max_rejects=9, sidecars="wids")
    return out


@pytest.fixture
def pack(server: S3Server, raw: Path, tmp_path: Path) -> Callable[..., Any]:
    def pack(url: str = URL, **options: Any) -> Any:
        given = {"shard_size": 3, "max_rejects": 9, "staging": tmp_path / "staging", **options}
        return pack_dataset(raw, url, storage_options=server.storage_options, **given)

    return pack


def load(where: Any, **options: Any) -> datapipe.Loader:
    return datapipe.make_loader(where, batch_size=2, image=ImageSpec(size=32), **options)


def there(server: S3Server) -> dict[str, bytes]:
    files = server.buckets["bucket"].items()
    return {key.removeprefix("x/shards/"): content for key, content in files}


def published(local: Path, contents: Any, without: str = "") -> dict[str, bytes]:
    files = contents(local).items()
    return {
        name: content
        for name, content in files
        if not name.startswith("columns/") and name != without
    }


def test_a_dataset_is_packed_there_and_read_from_there(
    pack: Any, server: S3Server, local: Path, contents: Any, tmp_path: Path
) -> None:
    report = pack(sidecars="wids")
    assert report.output == URL
    assert there(server) == published(local, contents)
    assert server.sent()[-1] == "x/shards/dataset.json"
    assert list((tmp_path / "staging").iterdir()) == []
    assert_same_batches(
        load(URL, remote=datapipe.RemoteSpec(storage_options=server.storage_options)), load(local)
    )


def test_the_same_command_again_has_nothing_to_do(pack: Any, server: S3Server, raw: Path) -> None:
    pack()
    before = list(server.sent())
    report = pack()
    assert report.finished_before
    assert server.sent() == before
    assert pack(sidecars="wids").finished_before
    assert server.sent()[len(before) :] == ["x/shards/shardindex.json"]


def test_the_command_finds_endpoint_and_credentials_by_itself(
    server: S3Server, raw: Path, local: Path, contents: Any, tmp_path: Path
) -> None:
    places = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    options = [*("--shard-size", "3"), *("--max-rejects", "9"), *("--staging", tmp_path / "here")]
    done = subprocess.run(
        [sys.executable, "-m", "datapipe", "pack", raw, URL, *options],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"Packed {URL}" in done.stdout
    assert f"all rejects: {URL}/rejects.jsonl" in done.stdout
    assert there(server) == published(local, contents, without="shardindex.json")


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_faults_now_and_then_do_not_show(
    pack: Any, server: S3Server, local: Path, method: str
) -> None:
    tries: Counter[str] = Counter()

    def fault(number: int, asked: str, key: str) -> bool:
        tries[key] += asked == method
        return asked == method and tries[key] % 3 != 0

    server.fault = fault
    pack()
    loader = load(URL, remote=datapipe.RemoteSpec(storage_options=server.storage_options))
    assert_same_batches(loader, load(local))
    assert max(tries.values()) >= 3


def test_what_cannot_be_sent_names_url_and_attempt_and_is_continued(
    pack: Any, server: S3Server, local: Path, contents: Any
) -> None:
    server.fault = lambda number, method, key: method == "PUT" and "000002" in key
    with pytest.raises(StoreError, match=r"s3://bucket/.*000002.tar: .*attempt 6 of 6"):
        pack()
    assert "dataset.json" not in there(server)
    server.fault = lambda number, method, key: False
    server.asked.clear()
    pack()
    sent = server.sent()
    assert "x/shards/shard-000002.tar" in sent
    # The others went before the fault, or beside it.
    assert "x/shards/shard-000000.tar" not in sent
    assert there(server) == published(local, contents, without="shardindex.json")


def test_what_was_damaged_there_meanwhile_is_sent_again(
    pack: Any, server: S3Server, local: Path, contents: Any
) -> None:
    server.fault = lambda number, method, key: method == "PUT" and "dataset.json" in key
    with pytest.raises(StoreError, match=r"dataset.json: .*attempt 6 of 6"):
        pack()
    server.fault = lambda number, method, key: False
    server.buckets["bucket"]["x/shards/shard-000001.tar"] = b"short"
    server.asked.clear()
    pack()
    tars = [key for key in server.sent() if key.endswith(".tar")]
    assert tars == ["x/shards/shard-000001.tar"]
    assert there(server) == published(local, contents, without="shardindex.json")


@pytest.mark.campaign
@pytest.mark.parametrize("point", [2, 5, 8])
def test_a_pack_that_was_killed_goes_on(
    pack: Any, server: S3Server, raw: Path, local: Path, contents: Any, tmp_path: Path, point: int
) -> None:
    def kill(number: int, method: str, key: str) -> bool:
        if len(server.sent()) == point:
            child.kill()
        return len(server.sent()) >= point

    server.fault = kill
    code = "import sys, json, datapipe; datapipe.pack_dataset(**json.loads(sys.argv[1]))"
    options = {
        "raw": str(raw),
        "out": URL,
        "staging": str(tmp_path / "staging"),
        "shard_size": 3,
        "max_rejects": 9,
        "storage_options": server.storage_options,
    }
    child = subprocess.Popen([sys.executable, "-c", code, json.dumps(options)])
    assert child.wait(60) == -signal.SIGKILL
    assert "dataset.json" not in there(server)
    server.fault = lambda number, method, key: False
    pack()
    assert there(server) == published(local, contents, without="shardindex.json")
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_pack_that_was_interrupted_goes_on(
    pack: Any, server: S3Server, local: Path, contents: Any, tmp_path: Path
) -> None:
    with pytest.raises(PackError, match="more than --max-rejects 3 allows"):
        pack(max_rejects=3)
    assert "dataset.json" not in there(server)
    pack()
    assert there(server) == published(local, contents, without="shardindex.json")
    assert list((tmp_path / "staging").iterdir()) == []


def test_another_dataset_there_is_refused_before_packing(pack: Any, server: S3Server) -> None:
    pack()
    before = there(server)
    with pytest.raises(PackError, match=rf"{URL} was started with other options \(shard_size"):
        pack(shard_size=4)
    assert there(server) == before


def test_other_files_there_are_refused(pack: Any, server: S3Server) -> None:
    server.buckets["bucket"]["x/shards/notes.txt"] = b"mine"
    with pytest.raises(PackError, match=r"found: notes.txt"):
        pack()
    assert list(there(server)) == ["notes.txt"]


def test_a_bucket_that_is_not_there_is_named(pack: Any) -> None:
    with pytest.raises(StoreError, match="s3://nowhere/x: there is no such bucket"):
        pack("s3://nowhere/x")


def test_a_dry_run_writes_nothing(pack: Any, server: S3Server, tmp_path: Path) -> None:
    report = pack(dry_run=True)
    assert (report.dry_run, report.samples, report.output) == (True, 9, URL)
    assert not server.sent()
    assert not (tmp_path / "staging").exists()


def test_large_files_go_in_parts(server: S3Server, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(11 << 20)
    (tmp_path / "a.tar").write_bytes(data)
    server.fault = lambda number, method, key: method == "PART" and number % 4 == 0
    target = RemoteTarget(
        "s3://bucket/x", RemoteOptions(retry=QUICK, storage_options=server.storage_options)
    )
    put = target._filesystem._put_file
    target._filesystem._put_file = lambda *args: put(*args, chunksize=5 << 20)
    target.begin_task(target.put(tmp_path / "a.tar", "a.tar")).result()
    assert server.buckets["bucket"] == {"x/a.tar": data}
    assert sum(method == "PART" for method, _ in server.asked) >= 3
    assert not server.parts  # an upload that broke is given up there, too
